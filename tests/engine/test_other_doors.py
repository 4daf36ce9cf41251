"""Requests that reach the engine past vLLM's Python front end, as from its Rust one: hints, lengths, ends."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest, EngineCoreRequestType, FinishReason
from vllm.v1.request import RequestStatus
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

from headway.core.length_estimate import LengthEstimate
from headway.engine import register
from headway.engine.demo_model import DEMO, resolve_model
from headway.engine.lengths import in_engine
from headway.engine.lengths.in_engine import MAX_QUEUED, EngineLengths
from headway.engine.model_free import ScriptedRequest, engine_config, to_request
from headway.engine.servers.server_command import SCHEDULER
from headway.engine.vllm.seams import LENGTHS, NOTICING, Feature
from tests.engine.lengths.test_length_entry import ESTIMATE, Noting, Service
from tests.engine.scripts import HearingEngine, scheduler, steps

pytestmark = pytest.mark.vllm

BAD = {"headway_ttft_ms": -1}


def sent(id_: str, extra_args: dict[str, Any] | None, prompt: list[int], tokens: int) -> EngineCoreRequest:
    """A request as a front end sends it that knows nothing of hints."""
    params = SamplingParams(max_tokens=tokens, min_tokens=tokens, ignore_eos=True, temperature=0.0)
    params.extra_args = extra_args
    return EngineCoreRequest(
        request_id=id_,
        prompt_token_ids=prompt,
        mm_features=None,
        sampling_params=params,
        pooling_params=None,
        arrival_time=time.time(),
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
    )


# ---- hints ------------------------------------------------------------------------------------------


def test_a_bad_hint_does_not_keep_a_message_from_being_read() -> None:
    # vLLM reads messages in a thread that nothing guards: what raises there ends the engine.
    register()
    frames = MsgpackEncoder().encode(sent("a", BAD, [1, 2, 3], 4))
    read = MsgpackDecoder(EngineCoreRequest).decode(frames)
    assert read.sampling_params.extra_args == BAD
    with pytest.raises(VLLMValidationError, match="headway_ttft_ms is -1"):
        SamplingParams(extra_args=BAD)


def test_a_request_with_a_bad_hint_ends_in_the_engine_with_an_error() -> None:
    built = scheduler(policy="headway")
    engine = HearingEngine(built)
    for name, extra_args in (("bad", BAD), ("good", {"headway_ttft_ms": 100})):
        request = to_request(ScriptedRequest(name, 0, range(10), 3))
        request.sampling_params.extra_args = extra_args
        built.add_request(request)
    for _ in steps(engine):
        engine.step()
    ends = engine.endings()
    assert ends["bad"].finish_reason is FinishReason.ERROR
    assert (
        ends["bad"].stop_reason == "headway: headway_ttft_ms is -1; accepted: milliseconds in (0, 6.048e+08]"
    )
    assert ends["good"].finish_reason is FinishReason.LENGTH


# ---- lengths, without a model -----------------------------------------------------------------------


class Door:
    """A scheduler behind a front end that predicts nothing."""

    def __init__(self, estimate: LengthEstimate | None = ESTIMATE, policy: str = "predicted") -> None:
        self.built = scheduler(policy=policy, predictor="none")
        self.predictor = Noting(estimate)
        tokenizer = self.built.structured_output_manager.tokenizer
        self.built.lengths = self.lengths = EngineLengths(Service(self.predictor), 1024, tokenizer)  # type: ignore[arg-type]
        self.engine = HearingEngine(self.built)

    def add(self, name: str, tokens: int = 5, **extra_args: Any) -> None:
        self.engine.add(ScriptedRequest(name, 0, range(300, 320), tokens, extra_args=extra_args or None))

    def hold(self) -> Event:
        """Let the thread do nothing until this is set."""
        held = Event()
        self.lengths._thread.submit(held.wait)
        return held

    def settle(self) -> None:
        """Let the thread do what it was given."""
        self.lengths._thread.submit(int).result()

    def finish(self) -> None:
        for _ in steps(self.engine):
            self.engine.step()
        self.settle()


@pytest.fixture
def door() -> Iterator[Door]:
    made = Door()
    yield made
    made.built.shutdown()


def test_a_length_is_predicted_beside_the_steps_and_known_to_the_next(door: Door) -> None:
    held = door.hold()
    door.add("a", 40)
    door.engine.step()
    job = door.built.jobs["a"]
    held.set()
    door.settle()
    assert job.predicted_length is None
    door.engine.step()
    assert job.predicted_length == ESTIMATE
    (facts,) = door.predictor.asked
    assert (facts.num_prompt_tokens, facts.max_output_tokens) == (20, 40)
    assert facts.user_input  # decoded from the ids


def test_a_finished_answer_teaches_and_one_that_was_aborted_does_not(door: Door) -> None:
    door.add("a", 5)
    door.add("gone", 50)
    door.engine.step()
    door.built.finish_requests("gone", RequestStatus.FINISHED_ABORTED)
    door.finish()
    assert [tokens for _, tokens in door.predictor.taught] == [5]
    assert not door.lengths._arrivals


def test_a_length_that_a_client_names_is_kept_and_teaches(door: Door) -> None:
    door.add("a", 5, headway_length=7)
    door.finish()
    assert door.predictor.asked == []
    assert [tokens for _, tokens in door.predictor.taught] == [5]


def test_requests_that_would_wait_long_for_a_prediction_get_none(door: Door) -> None:
    held = door.hold()
    for number in range(MAX_QUEUED + 3):
        door.add(str(number))
    held.set()
    door.finish()
    assert len(door.predictor.asked) == MAX_QUEUED
    assert len(door.engine.endings()) == MAX_QUEUED + 3


@pytest.mark.parametrize(
    ("rust", "left_out", "policy", "predicts"),
    [
        (False, None, "predicted", False),
        (True, None, "predicted", True),
        (True, None, "sjf", False),
        (False, LENGTHS, "predicted", True),
        (False, NOTICING, "predicted", True),
    ],
)
def test_the_engine_predicts_where_its_front_end_does_not(
    monkeypatch: pytest.MonkeyPatch, rust: bool, left_out: Feature | None, policy: str, predicts: bool
) -> None:
    monkeypatch.setattr(in_engine, "has_rust_front_end", lambda: rust)
    monkeypatch.setattr(in_engine, "works", lambda feature: feature is not left_out)
    built = scheduler(policy=policy)
    assert (built.lengths is not None) == predicts
    built.shutdown()


# ---- a real engine over its sockets -----------------------------------------------------------------


class EngineBySocket:
    """A real engine process, sent messages as vLLM's Rust front end sends them."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from vllm.v1.engine.core_client import EngineCoreClient
        from vllm.v1.executor.abstract import Executor

        monkeypatch.setenv("VLLM_USE_RUST_FRONTEND", "1")
        monkeypatch.setenv(
            "VLLM_RUST_FRONTEND_PATH", "/not/started/here"
        )  # vLLM looks for its program otherwise
        monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
        self.records, self.lengths = folder / "served.jsonl", folder / "lengths.npz"
        settings = {
            "policy": "predicted",
            "predictor": "learned",
            "length_model": str(self.lengths),
            "records": str(self.records),
        }
        config = engine_config(
            resolve_model(DEMO), scheduler_cls=SCHEDULER, additional_config={"headway": settings}
        )
        self._client: Any = EngineCoreClient.make_client(
            multiprocess_mode=True,
            asyncio_mode=False,
            vllm_config=config,
            executor_class=Executor.get_class(config),
            log_stats=False,
        )

    def send(self, request: EngineCoreRequest) -> None:
        frames = self._client.encoder.encode(request)
        head = (self._client.core_engine, EngineCoreRequestType.ADD.value)
        self._client.input_socket.send_multipart((*head, *frames), copy=False)

    def hear(self, *names: str) -> dict[str, EngineCoreOutput]:
        """The last outputs of these requests."""
        heard: dict[str, EngineCoreOutput] = {}
        while len(heard) < len(names):
            for output in self._client.get_output().outputs:
                if output.finish_reason is not None:
                    heard[output.request_id] = output
        assert set(heard) == set(names)
        return heard

    def answered(self, name: str, length: int) -> dict[str, Any]:
        """The record of one more request, whose answer is three times as long as its prompt."""
        limit = {"headway_max_output_tokens": 200}
        self.send(sent(name, limit, [300 + length] * length, 3 * length))
        self.hear(name)
        records = [json.loads(line) for line in self.records.read_text().splitlines()]
        return next(record for record in records if record["id"] == name)

    def close(self) -> None:
        self._client.shutdown()
        del self._client
        gc.collect()  # vLLM's client leaves its ZMQ context to the collector, which would warn after the tests


@pytest.mark.engine
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:Unclosed context:ResourceWarning")
def test_a_real_engine_survives_bad_hints_and_predicts_for_such_a_front_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = EngineBySocket(tmp_path, monkeypatch)
    try:
        engine.send(sent("bad", BAD, [1, 2, 3], 4))
        engine.send(sent("unknown", {"headway_ttft": 5}, [1, 2, 3], 4))
        engine.send(sent("good", None, [1, 2, 3], 4))
        heard = engine.hear("bad", "unknown", "good")
        assert heard["bad"].finish_reason is heard["unknown"].finish_reason is FinishReason.ERROR
        assert "headway_ttft_ms is -1" in str(heard["bad"].stop_reason)
        assert heard["good"].finish_reason is FinishReason.LENGTH
        for number in range(24):
            engine.answered(f"teaching-{number}", 5 + number % 12)
        predicted = engine.answered("predicted", 12)["predicted_output_tokens"]
        assert 10 <= predicted <= 60  # answers had 15 to 48 tokens
    finally:
        engine.close()


def wait_for(happened: Callable[[], bool]) -> None:
    while not happened():
        time.sleep(0.05)

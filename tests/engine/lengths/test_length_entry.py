"""Predictions where requests enter vLLM, with its own front end; the engine behind it is a list."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest, FinishReason
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.input_processor import InputProcessor
from vllm.v1.engine.output_processor import OutputProcessor, RequestState

from headway.core.hints import read_hints
from headway.core.length_estimate import LengthEstimate
from headway.engine.demo_model import ensure_demo_random
from headway.engine.lengths.forecasts import Forecasts, LengthMetrics
from headway.engine.lengths.service import DECODED_TOKENS
from headway.engine.model_free import engine_config
from headway.engine.vllm.plugin import schedule_here
from headway.predict.lengths.facts import RequestFacts, SharedPrefix

pytestmark = pytest.mark.vllm

ESTIMATE = LengthEstimate(20.0, 10.0, 30.0)


class Noting:
    """A predictor that always says the same, and keeps what it is asked and taught."""

    def __init__(self, estimate: LengthEstimate | None = ESTIMATE) -> None:
        self.estimate = estimate
        self.asked: list[RequestFacts] = []
        self.taught: list[tuple[RequestFacts, int]] = []

    def predict(self, facts: RequestFacts) -> LengthEstimate | None:
        self.asked.append(facts)
        return self.estimate

    def observe(self, facts: RequestFacts, output_tokens: int) -> None:
        self.taught.append((facts, output_tokens))


class Service:
    """The front end's part of a length service that predicts."""

    def __init__(self, predictor: Noting) -> None:
        self.prefixes = SharedPrefix(least_prompts=2, least_pieces=2)
        self.forecasts = Forecasts(predictor, LengthMetrics(0))
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


class Core:
    """Requests that were sent to an engine."""

    def __init__(self) -> None:
        self.added: list[EngineCoreRequest] = []
        self.resources = type("Resources", (), {"engine_dead": False})

    async def add_request_async(self, request: EngineCoreRequest) -> None:
        self.added.append(request)

    def shutdown(self, timeout: float | None = None) -> None: ...


class FrontEnd:
    """vLLM's own front end over `Core`, with a predictor."""

    def __init__(self, config: Any, predictor: Noting, loop: asyncio.AbstractEventLoop) -> None:
        from vllm.renderers import renderer_from_config

        self.predictor = predictor
        self.core = Core()
        llm = AsyncLLM.__new__(AsyncLLM)
        llm.vllm_config, llm.model_config = config, config.model_config
        llm.scheduler_config = config.scheduler_config
        llm.observability_config = config.observability_config
        llm.renderer = renderer_from_config(config)
        llm.input_processor = InputProcessor(config, llm.renderer)
        llm.output_processor = OutputProcessor(llm.renderer.tokenizer, log_stats=False)
        llm.engine_core = self.core
        llm.admission_stats = llm.logger_manager = None
        llm.log_requests = False
        llm.output_handler = loop.create_future()  # `end` does its work
        llm._supported_tasks = ("generate", "embed")
        llm.headway_lengths = Service(predictor)
        self.llm = llm

    def add(self, prompt: Any, params: Any = None, **more: Any) -> list[EngineCoreRequest]:
        """Render and add a prompt; what the engine got."""
        before = len(self.core.added)
        (rendered,) = self.llm.renderer.render_cmpl([prompt], self.llm.renderer.default_cmpl_tok_params)
        asyncio.run(self.llm.add_request("r", rendered, params or SamplingParams(max_tokens=50), **more))
        return self.core.added[before:]

    def end(self, request: EngineCoreRequest, tokens: int, reason: FinishReason) -> None:
        """The engine says that a request has ended, after so many tokens."""
        output = EngineCoreOutput(request.request_id, new_token_ids=[300] * tokens, finish_reason=reason)
        self.llm.output_processor.process_outputs([output])


@pytest.fixture(scope="module")
def config() -> Any:
    made = engine_config(str(ensure_demo_random()))
    schedule_here()
    return made


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture
def front(config: Any, loop: asyncio.AbstractEventLoop) -> FrontEnd:
    return FrontEnd(config, Noting(), loop)


def predicted(request: EngineCoreRequest) -> LengthEstimate | None:
    assert request.sampling_params is not None
    return read_hints(request.sampling_params.extra_args).predicted_length


def test_a_request_carries_its_prediction_to_the_engine(front: FrontEnd) -> None:
    params = SamplingParams(max_tokens=50, extra_args={"headway_tenant": "t", "of_another": 1})
    (request,) = front.add({"prompt": "Once upon a time"}, params)
    assert predicted(request) == ESTIMATE
    assert request.sampling_params.extra_args["of_another"] == 1
    (facts,) = front.predictor.asked
    assert facts == RequestFacts(
        num_prompt_tokens=len(request.prompt_token_ids),
        max_output_tokens=50,
        user_input="Once upon a time",
        tenant="t",
    )
    assert params.extra_args == {"headway_tenant": "t", "of_another": 1}, "the caller's own"


def test_what_the_client_says_goes_before_and_its_answer_teaches(front: FrontEnd) -> None:
    (request,) = front.add({"prompt": "x"}, SamplingParams(max_tokens=50, extra_args={"headway_length": 7}))
    assert predicted(request) == LengthEstimate.around(7.0)
    assert front.predictor.asked == []
    front.end(request, 9, FinishReason.STOP)
    assert [tokens for _, tokens in front.predictor.taught] == [9]


@pytest.mark.parametrize(
    ("reason", "taught"),
    [
        (FinishReason.STOP, [12]),
        (FinishReason.LENGTH, [12]),
        (FinishReason.ABORT, []),
        (FinishReason.ERROR, []),
        (FinishReason.REPETITION, []),
    ],
)
def test_an_answer_that_comes_to_its_own_end_teaches(
    front: FrontEnd, reason: FinishReason, taught: list[int]
) -> None:
    (request,) = front.add({"prompt": "x"})
    front.end(request, 12, reason)
    assert [tokens for _, tokens in front.predictor.taught] == taught
    assert [facts for facts, _ in front.predictor.taught] == front.predictor.asked[: len(taught)]


def test_a_stop_string_is_an_end_too(front: FrontEnd) -> None:
    (text,) = [front.llm.renderer.tokenizer.decode([300])]
    (request,) = front.add({"prompt": "x"}, SamplingParams(max_tokens=50, stop=[text * 2]))
    output = EngineCoreOutput(request.request_id, new_token_ids=[300] * 3)
    front.llm.output_processor.process_outputs([output])
    assert [tokens for _, tokens in front.predictor.taught] == [2]


def test_an_aborted_request_leaves_nothing_behind(front: FrontEnd) -> None:
    (request,) = front.add({"prompt": "x"})
    front.llm.output_processor.abort_requests([request.request_id], internal=True)
    front.end(request, 3, FinishReason.STOP)
    assert front.predictor.taught == []
    assert front.llm.output_processor.request_states == {}


def test_several_answers_are_predicted_once_and_each_teaches(front: FrontEnd) -> None:
    requests = front.add({"prompt": "x"}, SamplingParams(max_tokens=50, n=3, temperature=1.0))
    assert [predicted(request) for request in requests] == [ESTIMATE] * 3
    assert len(front.predictor.asked) == 1
    for tokens, request in enumerate(requests, start=5):
        front.end(request, tokens, FinishReason.STOP)
    assert [tokens for _, tokens in front.predictor.taught] == [5, 6, 7]


def test_token_ids_are_read_as_the_text_they_stand_for(front: FrontEnd) -> None:
    front.add({"prompt_token_ids": [300, 301, 302]})
    (facts,) = front.predictor.asked
    assert facts.user_input == front.llm.renderer.tokenizer.decode([300, 301, 302])
    assert facts.num_prompt_tokens == 3


def test_of_very_many_token_ids_the_ends_are_read(front: FrontEnd) -> None:
    half = DECODED_TOKENS // 2
    ids = [300] * half + [301] * 500 + [302] * half
    front.add({"prompt_token_ids": ids})
    (facts,) = front.predictor.asked
    assert facts.user_input == front.llm.renderer.tokenizer.decode([300] * half + [302] * half)
    assert facts.num_prompt_tokens == len(ids)


def test_without_a_tokenizer_there_are_only_numbers(front: FrontEnd) -> None:
    (rendered,) = front.llm.renderer.render_cmpl(
        [{"prompt_token_ids": [300, 301]}], front.llm.renderer.default_cmpl_tok_params
    )
    front.llm.renderer.tokenizer = None
    asyncio.run(front.llm.add_request("r", rendered, SamplingParams(max_tokens=50, detokenize=False)))
    (facts,) = front.predictor.asked
    assert (facts.num_prompt_tokens, facts.user_input, facts.instruction) == (2, "", "")


def test_the_declared_limit_counts_and_an_open_one_is_what_the_context_leaves(front: FrontEnd) -> None:
    front.add(
        {"prompt_token_ids": [300] * 10},
        SamplingParams(max_tokens=5, extra_args={"headway_max_output_tokens": 90}),
    )
    front.add({"prompt_token_ids": [300] * 10}, SamplingParams(max_tokens=None))
    longest = front.llm.model_config.max_model_len
    assert [facts.max_output_tokens for facts in front.predictor.asked] == [90, longest - 10]


@pytest.mark.parametrize(("given", "tenant"), [({}, "french"), ({"headway_tenant": "t"}, "t")])
def test_an_adapter_is_the_tenant_of_a_request_that_has_none(
    front: FrontEnd, given: dict[str, Any], tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front.llm.input_processor, "lora_config", object())
    front.add(
        {"prompt": "x"},
        SamplingParams(max_tokens=50, extra_args=given),
        lora_request=LoRARequest("french", 1, "/nowhere"),
    )
    (facts,) = front.predictor.asked
    assert facts.tenant == tenant


def test_what_many_prompts_share_is_their_instruction(front: FrontEnd) -> None:
    for text in ("Put this in order: b a", "Put this in order: d c"):
        front.add({"prompt": text})
    assert front.predictor.asked[-1].instruction == "Put this in order:"
    assert front.predictor.asked[-1].user_input == " d c"


def test_an_answer_of_one_token_needs_no_prediction(front: FrontEnd) -> None:
    (request,) = front.add({"prompt": "x"}, SamplingParams(max_tokens=1))
    assert (predicted(request), front.predictor.asked) == (None, [])
    front.end(request, 1, FinishReason.LENGTH)
    assert front.predictor.taught == []


def test_a_predictor_that_knows_nothing_changes_nothing(front: FrontEnd) -> None:
    front.predictor.estimate = None
    (request,) = front.add({"prompt": "x"})
    assert request.sampling_params.extra_args is None
    front.end(request, 4, FinishReason.STOP)
    assert len(front.predictor.taught) == 1


def test_without_a_predictor_and_for_pooling_requests_are_as_ever(front: FrontEnd) -> None:
    front.llm.headway_lengths = None
    (request,) = front.add({"prompt": "x"})
    assert predicted(request) is None
    front.end(request, 4, FinishReason.STOP)
    assert front.predictor.taught == []


def test_a_front_end_that_shuts_down_closes_its_predictor(front: FrontEnd) -> None:
    front.llm.shutdown()
    assert front.llm.headway_lengths.closed == 1


def test_registering_again_changes_nothing(config: Any) -> None:
    hooks = (
        AsyncLLM.__init__,
        AsyncLLM.add_request,
        AsyncLLM.shutdown,
        RequestState.from_new_request.__func__,
    )
    schedule_here()
    assert hooks == (
        AsyncLLM.__init__,
        AsyncLLM.add_request,
        AsyncLLM.shutdown,
        RequestState.from_new_request.__func__,
    )

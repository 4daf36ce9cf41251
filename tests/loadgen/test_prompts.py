from __future__ import annotations

import json
from typing import Any

import pytest

from headway.core.length_estimate import LengthEstimate
from headway.core.slo import Slo
from headway.errors import ConfigError
from headway.loadgen.replay_options import Dialect, TokenIds, prompt_of
from headway.traces import MOONCAKE_BLOCK_TOKENS, TraceRequest


def request(id: str = "a", input_tokens: int = 50, output_tokens: int = 10, **fields: Any) -> TraceRequest:
    return TraceRequest(id, 0.0, input_tokens, output_tokens, **fields)


def body(
    trace_request: TraceRequest, max_model_len: int | None = 4096, plain: bool = False, **more: Any
) -> dict[str, Any]:
    dialect = Dialect("m", max_model_len, TokenIds(), plain, **more)
    decoded: dict[str, Any] = json.loads(dialect.body(trace_request))
    return decoded


def test_made_up_prompts_have_the_exact_length_and_differ_between_requests() -> None:
    prompts = [prompt_of(request(id=str(n), input_tokens=37), TokenIds()) for n in range(20)]
    assert {len(prompt) for prompt in prompts} == {37}
    assert len({tuple(prompt) for prompt in prompts}) == 20


def test_made_up_prompts_are_the_same_for_the_same_seed_only() -> None:
    assert prompt_of(request(), TokenIds(seed=1)) == prompt_of(request(), TokenIds(seed=1))
    assert prompt_of(request(), TokenIds(seed=1)) != prompt_of(request(), TokenIds(seed=2))


@pytest.mark.parametrize("size", [2, 100, 1000, 32000])
def test_ids_lie_inside_the_vocabulary(size: int) -> None:
    ids = TokenIds.for_vocabulary(size, seed=0)
    drawn = ids.draw("x", 5000)
    assert 0 <= ids.first <= min(drawn)
    assert max(drawn) <= ids.last == size - 1


def test_ids_of_an_unknown_vocabulary_are_above_the_special_tokens_and_below_a_thousand() -> None:
    drawn = TokenIds.for_vocabulary(None, seed=0).draw("x", 5000)
    assert (min(drawn), max(drawn)) == (256, 999)


def test_a_vocabulary_of_one_token_is_refused() -> None:
    with pytest.raises(ConfigError, match="accepted: 2 or more"):
        TokenIds.for_vocabulary(1, seed=0)


def test_requests_share_their_prefix_blocks_and_nothing_else() -> None:
    length = 2 * MOONCAKE_BLOCK_TOKENS + 100
    first = prompt_of(request("a", input_tokens=length, prefix_blocks=(1, 2)), TokenIds())
    second = prompt_of(request("b", input_tokens=length, prefix_blocks=(1, 3)), TokenIds())
    assert len(first) == len(second) == length
    assert first[:MOONCAKE_BLOCK_TOKENS] == second[:MOONCAKE_BLOCK_TOKENS]
    assert first[MOONCAKE_BLOCK_TOKENS : 2 * MOONCAKE_BLOCK_TOKENS] != second[MOONCAKE_BLOCK_TOKENS : 2 * 512]
    assert first[-100:] != second[-100:]


def test_the_last_prefix_block_may_be_partial() -> None:
    prompt = prompt_of(request(input_tokens=MOONCAKE_BLOCK_TOKENS + 5, prefix_blocks=(1, 2)), TokenIds())
    assert len(prompt) == MOONCAKE_BLOCK_TOKENS + 5


def test_the_traces_own_prompt_is_sent_as_it_is() -> None:
    assert body(request(prompt="hello\u2028there"))["prompt"] == "hello\u2028there"


def test_the_length_is_forced_and_no_priority_is_sent_unless_set() -> None:
    sent = body(request(output_tokens=10))
    assert (sent["max_tokens"], sent["min_tokens"], sent["ignore_eos"]) == (10, 10, True)
    assert "priority" not in sent
    assert body(request(priority=-3))["priority"] == -3


def test_a_later_attempt_is_the_same_request_by_another_name() -> None:
    first, again = body(request()), json.loads(Dialect("m", 4096, TokenIds()).body(request(), attempt=1))
    assert again.pop("request_id") == f"{first.pop('request_id')}+1"
    assert again == first


def test_a_policy_hears_the_declared_limit_and_never_the_forced_length() -> None:
    assert body(request(max_output_tokens=512))["vllm_xargs"] == {"headway_max_output_tokens": 512}
    # Where none is declared the model's context is the limit: 4096 - 50 tokens of prompt.
    assert body(request())["vllm_xargs"] == {"headway_max_output_tokens": 4046}
    assert "vllm_xargs" not in body(request(), max_model_len=None)
    assert "vllm_xargs" not in body(request(prompt="as long as it is"))


def test_a_model_that_stops_by_itself_is_given_a_limit_and_no_length() -> None:
    own = request(prompt="x", output_tokens=10)
    sent = body(own, own_stops=True)
    assert "min_tokens" not in sent
    assert "ignore_eos" not in sent
    # The prompt has 50 tokens of a context of 4096.
    assert sent["max_tokens"] == 4046
    assert body(own, max_model_len=None, own_stops=True)["max_tokens"] is None
    assert body(request(prompt="x", max_output_tokens=64), own_stops=True)["max_tokens"] == 64


def test_predicted_lengths_are_said_of_the_requests_that_have_one() -> None:
    estimates = {"a": LengthEstimate(20.0, 10.0, 40.0)}
    hints = body(request("a", max_output_tokens=64), estimates=estimates)["vllm_xargs"]
    assert hints == {
        "headway_max_output_tokens": 64,
        "headway_length": 20.0,
        "headway_length_low": 10.0,
        "headway_length_high": 40.0,
    }
    other = body(request("b", max_output_tokens=64), estimates=estimates)["vllm_xargs"]
    assert other == {"headway_max_output_tokens": 64}


def test_targets_and_tenant_are_passed_on_in_milliseconds() -> None:
    slo = Slo(ttft_s=0.5, tbt_s=0.05, deadline_s=3)
    assert body(request(slo=slo, tenant="blue", session="s", max_output_tokens=20))["vllm_xargs"] == {
        "headway_ttft_ms": 500.0,
        "headway_tbt_ms": 50.0,
        "headway_deadline_ms": 3000.0,
        "headway_tenant": "blue",
        "headway_program": "s",
        "agentic_context": '{"program_id":"s"}',
        "headway_max_output_tokens": 20,
    }


def test_a_plain_server_is_sent_only_what_openai_defines() -> None:
    sent = body(request(slo=Slo(ttft_s=1), tenant="blue", priority=1), plain=True)
    assert set(sent) == {"model", "prompt", "max_tokens", "temperature", "stream", "stream_options"}
    assert sent["stream_options"] == {"include_usage": True}


def test_input_and_output_together_must_fit_the_context() -> None:
    dialect = Dialect("m", 100, TokenIds())
    assert dialect.too_long(request(input_tokens=90, output_tokens=10)) is None
    reason = dialect.too_long(request(input_tokens=91, output_tokens=10))
    assert reason == "91 input + 10 output tokens exceed the context of 100 tokens of model 'm'"
    assert Dialect("m", None, TokenIds()).too_long(request(input_tokens=10**6)) is None

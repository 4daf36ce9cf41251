"""Files of benchmarks, servers and tracers, in the form of their documentation and sources."""

from __future__ import annotations

import bz2
import importlib.util
import json
import logging
import lzma
from pathlib import Path
from typing import Any

import pytest

from headway.core.slo import Slo
from headway.errors import TraceError
from headway.traces import TraceRequest, read_trace
from headway.traces.reader import read_with_texts

HAS_PYARROW = importlib.util.find_spec("pyarrow") is not None
S = 10**9
MOONCAKE = "".join(f'{{"timestamp": {time}, "input_length": 5, "output_length": 1}}\n' for time in (0, 3000))


def lines(*objects: object) -> str:
    return "".join(f"{json.dumps(each)}\n" for each in objects)


def attributes(values: dict[str, object]) -> list[dict[str, Any]]:
    kinds = {int: "intValue", str: "stringValue"}
    return [
        {"key": key, "value": {kinds[type(value)]: str(value) if isinstance(value, int) else value}}
        for key, value in values.items()
    ]


def span(number: int, parent: int | None = None, /, **values: object) -> dict[str, Any]:
    return {
        "traceId": "5b8e", "spanId": f"s{number}", "parentSpanId": "" if parent is None else f"s{parent}",
        "startTimeUnixNano": str(1_700_000_000 * S + number * S // 2),
        "attributes": attributes({f"gen_ai.{key.replace('__', '.')}": value for key, value in values.items()}),
    }  # fmt: skip


def otlp(*spans: dict[str, Any]) -> dict[str, Any]:
    return {
        "resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {"name": "x"}, "spans": list(spans)}]}]
    }


USED = {"usage__input_tokens": 7, "usage__output_tokens": 3}
GUIDELLM = {
    "metadata": {"version": 1},
    "benchmarks": [
        {
            "config": {"run_id": "x"},
            "requests": {
                "successful": [
                    {
                        "type_": "generative_request_stats",
                        "request_id": name,
                        "request_start_time": 1_700_000_000.5 + number,
                        "prompt_tokens": 5,
                        "output_tokens": 6,
                        "info": {"timings": {"request_start": 1.0}},
                    }
                    for number, name in enumerate("ab")
                ],
                "errored": [
                    {
                        "request_id": "c",
                        "request_start_time": 1_700_000_009.0,
                        "prompt_tokens": 5,
                        "output_tokens": 1,
                    }
                ],
                "incomplete": [],
            },
        }
    ],
}
BENCH_SERVE = {
    "date": "20260101-000000", "request_rate": "inf", "input_lens": [5, 6, 7], "output_lens": [1, 0, 3],
    "start_times": [100.5, 101.0, 102.25], "ttfts": [0.1, 0.0, 0.1], "itls": [[], [], [0.1, 0.1]],
    "generated_texts": ["a", "", "b"], "errors": ["", "timeout", ""],
}  # fmt: skip
USAGE = {"usage": {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}}
MESSAGES = [{"role": "user", "content": "Hi"}]
VLLM_LOG = """\
(APIServer pid=7) INFO 12-31 23:59:59 [logger.py:60] Received request cmpl-1-0: params: S(n=1), lora_request: None.
(APIServer pid=7) DEBUG 12-31 23:59:59 [request_logger.py:50] Request cmpl-1-0 details: prompt: 'Generated response', \
prompt_token_ids: [1, 2, 3], prompt_embeds shape: None.
INFO:     127.0.0.1:55 - "POST /v1/completions HTTP/1.1" 200 OK
INFO 01-01 00:00:02 [logger.py:43] Received request chatcmpl-2: prompt: 'prompt_token_ids: [9]', params: S, \
prompt_token_ids: [4, 5], lora_request: None.
INFO 01-01 00:00:03 [logger.py:43] Generated response chatcmpl-2 (streaming complete): output: 'x', \
output_token_ids: [1, 2, 3], finish_reason: stop
DEBUG 01-01 00:00:04 [logger.py:43] Generated response cmpl-1 (streaming delta) details: output_token_ids: [1, 2]
DEBUG 01-01 00:00:04 [logger.py:43] Generated response cmpl-1 (streaming delta) details: output_token_ids: [3]
DEBUG 01-01 00:00:04 [logger.py:43] Generated response cmpl-1 (streaming complete) details: output_token_ids: None
"""
RECORD = {
    "id": "a", "tenant": "t", "arrival_s": 2.5, "first_scheduled_s": None, "first_token_s": 3.0, "finished_s": 4.0,
    "prompt_tokens": 5, "output_tokens": 6, "slo": {"ttft_s": 1.5, "tbt_s": None, "deadline_s": None},
    "outcome": "finished",
}  # fmt: skip
SMALL_BLOCKS = list(range(38))  # of 16 tokens: 600 tokens are two blocks of 512

EXPECTED: dict[str, tuple[str, list[TraceRequest]]] = {
    "guidellm": (
        json.dumps(GUIDELLM, indent=2),
        [TraceRequest("0", 0.0, 5, 6), TraceRequest("1", 1.0, 5, 6)],
    ),
    "bench serve": (json.dumps(BENCH_SERVE), [TraceRequest("0", 0.0, 5, 1), TraceRequest("1", 1.75, 7, 3)]),
    "aiperf with delays": (
        lines(
            {"session_id": "a", "timestamp": 1000, "input_length": 300, "output_length": 40, "hash_ids": [7]},
            {"session_id": "a", "delay": 2000, "input_length": 350, "output_length": 0},
            {"session_id": "a", "delay": 500, "input_length": 350, "output_length": 41},
            {"session_id": "b", "timestamp": 1500, "input_length": 360, "output_length": 42},
        ),
        [
            TraceRequest("0", 0.0, 300, 40, session="a", prefix_blocks=(7,)),
            TraceRequest("1", 0.5, 360, 42, session="b"),
            TraceRequest("2", 2.5, 350, 41, session="a"),
        ],
    ),
    "aiperf with turns": (
        lines({"session_id": "a", "turns": [{"timestamp": 0, "input_length": 3, "output_length": 4},
                                            {"delay": 1500, "input_length": 5, "output_length": 6}]}),
        [TraceRequest("0", 0.0, 3, 4, session="a"), TraceRequest("1", 1.5, 5, 6, session="a")],
    ),
    "aiperf's export": (
        lines(*({"metadata": {"request_start_ns": 1_759_813_207_532_900_363 + delay, "conversation_id": "c"},
                 "metrics": {"input_sequence_length": {"value": 5, "unit": "tokens"},
                             "output_sequence_length": {"value": 6, "unit": "tokens"}}} for delay in (0, S))),
        [TraceRequest("0", 0.0, 5, 6, session="c"), TraceRequest("1", 1.0, 5, 6, session="c")],
    ),
    "Qwen-Bailian": (
        lines(*({"chat_id": number, "parent_chat_id": -1, "timestamp": 61.5 + number, "input_length": 600,
                 "output_length": 5, "type": "text", "turn": 1, "hash_ids": []} for number in range(2))),
        [TraceRequest("0", 0.0, 600, 5), TraceRequest("1", 1.0, 600, 5)],
    ),
    "OTLP": (
        lines(otlp(span(0, **USED, operation__name="chat", conversation__id="c", request__max_tokens=9)),
              otlp(span(2, usage__prompt_tokens=8, usage__completion_tokens=2, request__id="r"))),
        [TraceRequest("0", 0.0, 7, 3, 9, session="c"), TraceRequest("1", 1.0, 8, 2)],
    ),
    "OTLP with spans of one request in another": (
        json.dumps(otlp(span(3, 2, **USED), span(2, 1, **USED), span(0, **USED),
                        span(1, **USED, operation__name="invoke_agent")), indent=1),
        [TraceRequest("0", 0.0, 7, 3), TraceRequest("1", 1.0, 7, 3)],
    ),
    "OpenTelemetry's console": (
        "\n".join(json.dumps({"name": "chat", "context": {"span_id": f"0x{second}"}, "parent_id": None,
                              "start_time": f"2024-05-01T00:00:0{second}.250000Z", "attributes": {
                                  "gen_ai.usage.input_tokens": 3, "gen_ai.usage.output_tokens": 4}}, indent=4)
                  for second in (0, 2)),
        [TraceRequest("0", 0.0, 3, 4), TraceRequest("1", 2.0, 3, 4)],
    ),
    "OpenInference": (
        lines(otlp(span(0) | {"attributes": attributes({f"llm.token_count.{what}": count for what, count in
                                                        (("prompt", 3), ("completion", 4))})})),
        [TraceRequest("0", 0.0, 3, 4)],
    ),
    "Jaeger": (
        json.dumps({"data": [{"traceID": "t", "spans": [
            {"spanID": "s", "startTime": 1_700_000_000_000_000, "tags": [
                {"key": "gen_ai.usage.input_tokens", "type": "int64", "value": 3},
                {"key": "gen_ai.usage.output_tokens", "type": "int64", "value": 4}]}]}]}),
        [TraceRequest("0", 0.0, 3, 4)],
    ),
    "vLLM's log": (VLLM_LOG, [TraceRequest("0", 0.0, 3, 3), TraceRequest("1", 3.0, 2, 3)]),
    "records": (
        lines(RECORD, RECORD | {"id": "b", "outcome": "shed"}, RECORD | {"id": "c", "arrival_s": 3.0}),
        [TraceRequest(name, at_s, 5, 6, tenant="t", slo=Slo(1.5)) for name, at_s in (("a", 0.0), ("c", 0.5))],
    ),
    "access log with bodies": (
        lines({"timestamp": "2024-05-01T10:00:00Z", "status": 500, "request": {"messages": MESSAGES}},
              {"timestamp": "2024-05-01T10:00:01+00:00", "status": 200,
               "request": {"messages": MESSAGES, "max_tokens": 50}, "response": USAGE},
              {"timestamp": "2024-05-01T12:00:03.5+02:00", "status": 200, "response_body": "{}",
               "request": json.dumps({"messages": MESSAGES, "user": "u"}), "response": json.dumps(USAGE)}),
        [TraceRequest("0", 0.0, 9, 4, 50), TraceRequest("1", 2.5, 9, 4)],
    ),
    "answers as they were sent": (
        lines(*({"id": "chatcmpl-1", "object": "chat.completion", "created": 1_700_000_000 + second} | USAGE
                for second in (0, 2))),
        [TraceRequest("0", 0.0, 9, 4), TraceRequest("1", 2.0, 9, 4)],
    ),
    "access log as a table": (
        "startTime,prompt_tokens,completion_tokens,end_user\n"
        "2024-05-01 10:00:00.0,3,4,u\n2024-05-01 10:00:01.5,3,4,\n",
        [TraceRequest("0", 0.0, 3, 4, tenant="u"), TraceRequest("1", 1.5, 3, 4)],
    ),
    "Mooncake's keys with dates": (
        MOONCAKE.replace(": 0", ': "2024-05-01T10:00:00Z"').replace(": 3000", ': "2024-05-01 10:00:03"'),
        [TraceRequest("0", 0.0, 5, 1), TraceRequest("1", 3.0, 5, 1)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPECTED)
def test_what_other_programs_write_is_read(name: str, tmp_path: Path) -> None:
    text, expected = EXPECTED[name]
    path = tmp_path / "file"
    path.write_text(text)
    assert read_trace(path) == expected


def test_a_log_whose_times_are_no_dates_is_read_with_their_unit(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0.25,5,6\n2.5,7,8\n")
    assert read_trace(path, time_unit="s") == [TraceRequest("0", 0.0, 5, 6), TraceRequest("1", 2.25, 7, 8)]


def test_small_blocks_are_put_together(tmp_path: Path) -> None:
    row = {"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.0, "input_length": 600, "output_length": 5}
    path = tmp_path / "bailian.jsonl"
    path.write_text(lines(row | {"hash_ids": SMALL_BLOCKS}, row | {"hash_ids": [*SMALL_BLOCKS[:-1], 99]}))
    first, second = (each.prefix_blocks for each in read_trace(path))
    assert len(first) == len(second) == 2
    assert first[0] == second[0]
    assert first[1] != second[1]


REFUSED = {
    "ShareGPT": ('[{"id": "x", "conversations": [{"from": "human", "value": "x"}]}]', "ShareGPT's conversations"),
    "batch": (lines({"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {}}), "a batch for OpenAI"),
    "bench serve in short": (lines({"request_throughput": 1.0, "total_input_tokens": 5}), "without --save-detailed"),
    "bench serve without times": (lines({"input_lens": [1], "output_lens": [1]}), "without start_times"),
    "guidellm without requests": (lines({"benchmarks": [{"metrics": {}}]}), "a guidellm report without its requests"),
    "aiperf's texts": (lines({"session_id": "a", "turns": [{"text": "Hi"}]}), "an aiperf data set of texts"),
    "aiperf's text_input": (lines({"text_input": "Hi", "output_length": 5}), "an aiperf trace of texts"),
    "aiperf in no time": (
        lines(*({"session_id": "a", "delay": 2, "input_length": 5, "output_length": 5},) * 2),
        "would be 0.002 s apart on average",
    ),
    "other spans": (lines(otlp(span(1) | {"attributes": attributes({"http.method": "GET"})})), "without gen_ai.usage"),
    "gateway": (
        lines({"at": 1.7e9, "id": "x", "path": "/v1/completions", "status": 200, "outcome": "finished", "ms": 3.0}),
        "an access log of Headway's gateway, which tells no prompt tokens",
    ),
    "vLLM's log without ids": (VLLM_LOG.replace("_token_ids: [", "_ids: ["), "a vLLM log without token ids"),
    "uvicorn": ('INFO:     127.0.0.1:3 - "POST /v1/completions HTTP/1.1" 200 OK\n', "a log of HTTP requests without"),
    "columns that differ": (lines(BENCH_SERVE | {"start_times": [1.0]}), "accepted: as many in each"),
    "usage without a date": (
        lines(*({"time": 5} | USAGE, {"time": 6} | USAGE)),
        "time does not tell its unit; accepted: dates, or the unit told by --time-unit s|ms|us|ns",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_named(name: str, tmp_path: Path) -> None:
    text, says = REFUSED[name]
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert str(caught.value).startswith(str(path))
    assert says in str(caught.value)


def test_what_is_taken_for_something_else_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "file"
    path.write_text(EXPECTED["aiperf with delays"][0])
    with caplog.at_level(logging.INFO, "headway.traces"):
        read_trace(path)
    assert "a delay counts from the arrival of the turn before" in caplog.text
    path.write_text(EXPECTED["access log with bodies"][0])
    with caplog.at_level(logging.INFO, "headway.traces"):
        read_trace(path)
    assert "left out 1 of 3 rows: status is not below 400 (1, first line 1)" in caplog.text
    assert "its prompts are passed over; `headway record` keeps which prefixes they share" in caplog.text


def test_the_prompts_of_a_log_can_be_had(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(EXPECTED["access log with bodies"][0])
    assert [text for _, text in read_with_texts(path)] == [json.dumps(MESSAGES)] * 2
    path.write_text(VLLM_LOG)
    assert [text for _, text in read_with_texts(path)] == ["1 2 3", "4 5"]


@pytest.mark.parametrize("pack", [bz2.compress, lzma.compress])
def test_other_packed_files_are_read(pack: Any, tmp_path: Path) -> None:
    path = tmp_path / "file"
    packed = pack(MOONCAKE.encode())
    path.write_bytes(packed)
    assert [each.arrival_s for each in read_trace(path)] == [0.0, 3.0]
    path.write_bytes(packed[:-6])
    with pytest.raises(TraceError, match=r" is a broken (bzip2|xz) file: "):
        read_trace(path)
    path.with_suffix(".bz2").write_text(MOONCAKE)
    with pytest.raises(TraceError, match=r"is named \.bz2 but does not start as a bzip2 file does"):
        read_trace(path.with_suffix(".bz2"))


@pytest.mark.skipif(HAS_PYARROW, reason="pyarrow is here")
@pytest.mark.parametrize(("start", "name"), [(b"PAR1\x15\x04", "Parquet"), (b"\x28\xb5\x2f\xfd\x04", "zstd")])
def test_without_pyarrow_files_that_take_it_are_refused(start: bytes, name: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(start)
    with pytest.raises(
        TraceError, match=f"is a {name} file; reading it takes pyarrow, which is not installed"
    ):
        read_trace(path)


@pytest.mark.skipif(not HAS_PYARROW, reason="pyarrow is not here")
def test_parquet_and_zstd_are_read_with_pyarrow(tmp_path: Path) -> None:
    import pyarrow  # type: ignore[import-not-found, unused-ignore]
    import pyarrow.parquet  # type: ignore[import-not-found, unused-ignore]

    path = tmp_path / "file"
    times = pyarrow.array([1_700_000_000 * S + 1, 1_700_000_003 * S + 1], pyarrow.timestamp("ns"))
    columns = {
        "timestamp": times,
        "input_length": [5.0, 6.0],
        "output_length": [1, 2],
        "hash_ids": [[1], [2]],
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    assert read_trace(path) == [
        TraceRequest("0", 0.0, 5, 1, prefix_blocks=(1,)), TraceRequest("1", 3.0, 6, 2, prefix_blocks=(2,)),
    ]  # fmt: skip
    with pyarrow.CompressedOutputStream(str(path), "zstd") as file:
        file.write(MOONCAKE.encode())
    assert [each.arrival_s for each in read_trace(path)] == [0.0, 3.0]

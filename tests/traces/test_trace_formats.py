from __future__ import annotations

import gzip
import logging
from pathlib import Path

import pytest

from headway.core.slo import Slo
from headway.errors import TraceError
from headway.traces import TraceRequest, read_trace

HEADWAY = """\
arrival_s,input_tokens,output_tokens,tenant,prompt,max_output_tokens,priority,ttft_s,tbt_s,deadline_s,session,think_s
0.5,10,20,a,"Say ""hi"",
twice",64,-1,1.5,0.1,30,s1,9
2.75,1,1,,,,,,,,,
"""
AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens\r
2023-11-16 18:15:46.6805900,374,44\r
2023-11-16 18:15:50.9951690,396,109\r
2023-11-16 18:15:50.9951691,7,1"""
AZURE_2024 = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-12 23:59:59.003908+00:00,1000,5
2024-05-13 00:00:00+00:00,2000,6
2024-05-13 02:00:01.25+02:00,3000,7
"""
BURSTGPT = """\
Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,0,1087,Conversation log
50,ChatGPT,0,18,18,Conversation log
110.5,GPT-4,417,505,922,API log
"""
BURSTGPT_SESSIONS = """\
Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
19440110.0,1722ac82,43,GPT-4,906,446,1352,Conversation log
19440161.0,,2,ChatGPT,36,29,65,API log
"""
MOONCAKE = """\
{"timestamp": 3000, "input_length": 1025, "output_length": 500, "hash_ids": [0, 1, 2]}

{"timestamp": 5999, "input_length": 7, "output_length": 1, "type": "text"}
"""

EXPECTED = {
    "headway": (
        HEADWAY,
        [
            TraceRequest(
                "0",
                0.0,
                10,
                20,
                64,
                "a",
                'Say "hi",\ntwice',
                "s1",
                priority=-1,
                slo=Slo(1.5, 0.1, 30.0),
                think_s=9.0,
            ),
            TraceRequest("1", 2.25, 1, 1),
        ],
    ),
    "azure": (
        AZURE,  # 50.9951690 - 46.6805900 = 4.3145790; the last digit is 100 ns
        [
            TraceRequest("0", 0.0, 374, 44),
            TraceRequest("1", 4.314579, 396, 109),
            TraceRequest("2", 4.3145791, 7, 1),
        ],
    ),
    "azure 2024": (
        AZURE_2024,  # 02:00:01.25 at +02:00 is 00:00:01.25 at +00:00
        [
            TraceRequest("0", 0.0, 1000, 5),
            TraceRequest("1", 0.996092, 2000, 6),
            TraceRequest("2", 2.246092, 3000, 7),
        ],
    ),
    "burstgpt": (BURSTGPT, [TraceRequest("0", 0.0, 472, 18), TraceRequest("1", 105.5, 417, 505)]),
    "burstgpt with sessions": (
        BURSTGPT_SESSIONS,
        [TraceRequest("0", 0.0, 906, 446, session="1722ac82"), TraceRequest("1", 51.0, 36, 29)],
    ),
    "mooncake": (
        MOONCAKE,
        [TraceRequest("0", 0.0, 1025, 500, prefix_blocks=(0, 1, 2)), TraceRequest("1", 2.999, 7, 1)],
    ),
    "objects": (
        """\
{"arrival_s": 0, "input_tokens": 10, "output_tokens": 3, "prefix_blocks": [7, -8], "tenant": null, "other": [1]}
{"arrival_s": 1e-1, "input_tokens": 10, "output_tokens": 3, "prompt": "Hi, \\"you\\"", "tbt_s": 0.5}
""",
        [
            TraceRequest("0", 0.0, 10, 3, prefix_blocks=(7, -8)),
            TraceRequest("1", 0.1, 10, 3, prompt='Hi, "you"', slo=Slo(tbt_s=0.5)),
        ],
    ),
    "array": (
        """\
[
  {"arrival_s": 3, "input_tokens": 10, "output_tokens": 3},
  {"arrival_s": 4, "input_tokens": 10,
   "output_tokens": 4}
]
""",
        [TraceRequest("0", 0.0, 10, 3), TraceRequest("1", 1.0, 10, 4)],
    ),
    "array of mooncake": (
        "[" + ",".join(MOONCAKE.split("\n\n")) + "]",
        [TraceRequest("0", 0.0, 1025, 500, prefix_blocks=(0, 1, 2)), TraceRequest("1", 2.999, 7, 1)],
    ),
    "array of azure": (
        '[{"TIMESTAMP": "2023-11-16 18:15:46", "ContextTokens": 3, "GeneratedTokens": 4}]',
        [TraceRequest("0", 0.0, 3, 4)],
    ),
}


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_each_format_is_told_from_its_content(name: str, packed: bool, tmp_path: Path) -> None:
    text, expected = EXPECTED[name]
    path = tmp_path / "trace"  # the name says nothing
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    assert read_trace(path) == expected
    assert read_trace(str(path), limit=1) == expected[:1]


def test_a_byte_order_mark_and_spaces_around_numbers_are_no_matter(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(b"\xef\xbb\xbfarrival_s, input_tokens, output_tokens\n0, 1, 2\n\n1e1, +3, 4\n")
    assert read_trace(path) == [TraceRequest("0", 0.0, 1, 2), TraceRequest("1", 10.0, 3, 4)]


def test_a_prompt_may_be_longer_than_the_csv_module_likes(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(f"arrival_s,input_tokens,output_tokens,prompt\n0,100000,1,{'x' * 400_000}\n")
    assert len(read_trace(path)[0].prompt or "") == 400_000


def test_ids_and_prefix_blocks_are_read_where_a_file_has_them(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("id,arrival_s,input_tokens,output_tokens,prefix_blocks\nx,0,1,2,7 -8\ny,0,1,2,\n")
    assert read_trace(path) == [
        TraceRequest("x", 0.0, 1, 2, prefix_blocks=(7, -8)),
        TraceRequest("y", 0.0, 1, 2),
    ]


def test_a_measured_time_to_first_token_is_no_target(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("arrival_s,input_tokens,output_tokens,api_s,ttft_s\n0,1,2,3.1,0.7\n")
    assert not read_trace(path)[0].slo


def test_nothing_behind_the_limit_is_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(b"arrival_s,input_tokens,output_tokens\n3,1,2\n4,1,2\n\xff\n")
    assert [request.arrival_s for request in read_trace(path, limit=2)] == [0.0, 1.0]
    with pytest.raises(TraceError, match="line 4"):
        read_trace(path, limit=3)


def test_a_limit_counts_requests_and_no_rows_left_out(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n3,1,0\n4,1,2\n5,0,2\n6,1,2\n")
    assert [request.arrival_s for request in read_trace(path, limit=2)] == [0.0, 2.0]


def test_rows_out_of_order_are_sorted_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,input_tokens,output_tokens,session\n2,1,9,a\n0.5,2,9,b\n0.5,3,9,a\n1,4,9,b\n")
    with caplog.at_level(logging.WARNING):
        requests = read_trace(path)
    assert [(request.id, request.arrival_s, request.input_tokens) for request in requests] == [
        ("0", 0.0, 2), ("1", 0.0, 3), ("2", 0.5, 4), ("3", 1.5, 1),
    ]  # fmt: skip
    assert caplog.messages == [f"{path}: rows were not in order of arrival; sorted by arrival_s"]


def _every(ticks: float, count: int = 4) -> str:
    return "".join(
        f'{{"timestamp": {place * ticks}, "input_length": 600, "output_length": 5}}\n'
        for place in range(count)
    )


@pytest.mark.parametrize(("ticks", "unit", "span_s"), [
    (0.5, "s", 1.5), (0.5, "ms", 0.0015), (1500, None, 4.5), (1500, "ms", 4.5), (1_500_000, "us", 4.5),
    (1_500_000_000, "ns", 4.5), (0, None, 0), (100, None, 0.3), (20, "s", 60), (20, "ms", 0.06),
])  # fmt: skip
def test_the_unit_of_time_may_be_told(tmp_path: Path, ticks: float, unit: str | None, span_s: float) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(_every(ticks))
    assert read_trace(path, time_unit=unit)[-1].arrival_s == pytest.approx(span_s)


@pytest.mark.parametrize(("ticks", "says"), [
    (0.5, "would be 0.0005 s apart in the mean"), (2, "would be 0.002 s apart"), (15.0, "0.0 is no whole number"),
    (30, r"would come within 0.09 s \(in seconds: 90 s\)"), (400_000, "would be 400 s apart"),
    (1_500_000, "would be 1.5e\\+03 s apart"), (1_500_000_000, "would be 1.5e\\+06 s apart"),
])  # fmt: skip
@pytest.mark.parametrize("table", [False, True], ids=["JSON", "CSV"])
def test_an_implausible_unit_is_asked_for(tmp_path: Path, ticks: float, says: str, table: bool) -> None:
    path = tmp_path / "trace"
    rows = "".join(f"{place * ticks},600,5\n" for place in range(4))
    path.write_text(f"timestamp,input_length,output_length\n{rows}" if table else _every(ticks))
    with pytest.raises(TraceError, match=f"timestamp is taken for ms, and .*{says}.*--time-unit s|ms|us|ns"):
        read_trace(path)


@pytest.mark.parametrize(("text", "unit", "says"), [
    (HEADWAY, "ms", "time_unit is 'ms' for .*, whose arrival_s tells its unit"),
    (AZURE, "ns", "time_unit is 'ns' for .*, whose TIMESTAMP tells its unit"),
    (MOONCAKE, "h", "time_unit is 'h'; accepted: s, ms, us, ns"),
])  # fmt: skip
def test_a_unit_that_contradicts_the_file_is_refused(tmp_path: Path, text: str, unit: str, says: str) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(TraceError, match=says):
        read_trace(path, time_unit=unit)


@pytest.mark.parametrize(("text", "said", "form"), [
    (_every(1500), "4 requests over 4.5 s, 0.889 a second, mean input 600 and output 5 tokens",
     "Mooncake JSON lines, timestamp: ms"),
    (AZURE, "3 requests over 4.31458 s, 0.695 a second, mean input 259 and output 51 tokens",
     "Azure LLM CSV, TIMESTAMP: dates"),
    (EXPECTED["array"][0], "2 requests over 1 s, 2 a second, mean input 10 and output 4 tokens",
     "Headway JSON, arrival_s: s"),
    (_every(60_000, 100), "100 requests over 99 min 00 s, 0.0168 a second, mean input 600 and output 5 tokens",
     "Mooncake JSON lines, timestamp: ms"),
    (_every(0), "4 requests all at once, mean input 600 and output 5 tokens", "Mooncake JSON lines, timestamp: ms"),
])  # fmt: skip
def test_what_was_understood_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, said: str, form: str
) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with caplog.at_level(logging.INFO, "headway.traces"):
        read_trace(path)
    assert caplog.messages == [f"{path}: {said} ({form})"]


@pytest.mark.parametrize("form", EXPECTED)
def test_blank_lines_before_the_first_are_skipped(form: str, tmp_path: Path) -> None:
    text, requests = EXPECTED[form]
    path = tmp_path / "trace"
    path.write_bytes(b"\n \t\r\n" + text.encode())
    assert read_trace(path) == requests

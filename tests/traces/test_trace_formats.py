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
                "0", 0.0, 10, 20, 64, "a", 'Say "hi",\ntwice', "s1", priority=-1, slo=Slo(1.5, 0.1, 30.0)
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
    path.write_text("arrival_s,input_tokens,output_tokens\n3,1,2\n4,1,2\nbroken\n")
    assert [request.arrival_s for request in read_trace(path, limit=2)] == [0.0, 1.0]
    with pytest.raises(TraceError, match="line 4"):
        read_trace(path, limit=3)


def test_failures_of_burstgpt_are_counted_in_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "burst.csv"
    path.write_text(BURSTGPT)
    with caplog.at_level(logging.WARNING):
        read_trace(path)
    assert caplog.messages == [f"{path}: left out 1 requests with 0 output tokens"]


def test_aborted_requests_are_left_out_only_if_asked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n1,9,0\n2,9,1\n3,9,0\n4,9,2\n")
    with pytest.raises(TraceError, match="line 2: output_tokens is 0; accepted: 1 or more"):
        read_trace(path)
    with caplog.at_level(logging.WARNING):
        kept = read_trace(path, drop_empty=True)
    assert kept == [TraceRequest("0", 0.0, 9, 1), TraceRequest("1", 2.0, 9, 2)]
    assert "left out 2 requests" in caplog.text


@pytest.mark.parametrize("form", EXPECTED)
def test_blank_lines_before_the_first_are_skipped(form: str, tmp_path: Path) -> None:
    text, requests = EXPECTED[form]
    path = tmp_path / "trace"
    path.write_bytes(b"\n \t\r\n" + text.encode())
    assert read_trace(path) == requests

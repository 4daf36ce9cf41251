from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from headway.errors import TraceError
from headway.traces import read_trace

HEAD = b"arrival_s,input_tokens,output_tokens\n"
AZURE = b"TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURSTGPT = b"Timestamp,Model,Request tokens,Response tokens\n"
MOONCAKE = b'{"timestamp": 5, "input_length": 600, "output_length": 1, "hash_ids": [0, 1]}\n'
PACKED = gzip.compress(HEAD + b"".join(b"%d,1,1\n" % second for second in range(99)))

BAD: dict[str, tuple[bytes, str, str]] = {  # what: file, where the error is, what it says
    "empty": (b"", " is empty", "accepted: Headway (arrival_s,input_tokens,output_tokens), Azure"),
    "blank": (b"\n\n", ", line 1", "the columns are ''; accepted: Headway"),
    "no rows": (HEAD, " has no requests", "accepted: one or more"),
    "no columns": (
        b"arrival_s,prompt_len\n0,1\n",
        ", line 1",
        "the columns are 'arrival_s, prompt_len'; accepted: Headway (arrival_s,input_tokens,output_tokens), "
        "Azure LLM (TIMESTAMP,ContextTokens,GeneratedTokens), "
        "BurstGPT (Timestamp,Request tokens,Response tokens), "
        "Mooncake (timestamp,input_length,output_length)",
    ),
    "other separator": (b"arrival_s;input_tokens;output_tokens\n", ", line 1", "'arrival_s;input_tokens"),
    "column twice": (b"arrival_s,input_tokens,output_tokens,input_tokens\n", ", line 1", "occurs twice"),
    "misspelt target": (
        b"arrival_s,input_tokens,output_tokens,ttft\n0,1,2,1\n",
        ", line 1",
        "column 'ttft'; accepted: ttft_s",
    ),
    "target in milliseconds": (
        b"arrival_s,input_tokens,output_tokens,ttft_ms\n0,1,2,100\n",
        ", line 1",
        "column 'ttft_ms'; accepted: ttft_s",
    ),
    "short row": (HEAD + b"0,1,2\n1,2\n", ", line 3", "2 cells were found; accepted: 3, as in the header"),
    "long row": (HEAD + b"0,1,2,3\n", ", line 2", "4 cells were found; accepted: 3"),
    "open quote": (HEAD + b'0,1,2\n"1,2,3\n4,5,6\n', ", line 3", "unexpected end of data"),
    "text after quote": (HEAD + b'0,1,"2"3\n', ", line 2", "accepted: comma-separated values"),
    "old Mac line ends": (b"arrival_s,input_tokens,output_tokens\r0,1,2\r", ", line 1", "new-line character"),
    "negative time": (HEAD + b"-1,1,1\n", ", line 2", "arrival_s is '-1'; accepted: a time, 0 or more"),
    "NaN time": (HEAD + b"nan,1,1\n", ", line 2", "arrival_s is 'nan'; accepted: a finite number"),
    "time beyond a float": (HEAD + b"1e999,1,1\n", ", line 2", "arrival_s is '1e999'"),
    "time with an underscore": (HEAD + b"1_0,1,1\n", ", line 2", "arrival_s is '1_0'"),
    "no time": (HEAD + b",1,1\n", ", line 2", "arrival_s is ''"),
    "fraction of a token": (HEAD + b"0,1.5,1\n", ", line 2", "input_tokens is '1.5'; accepted: a whole number"),
    "huge number": (HEAD + b"0," + b"9" * 5000 + b",1\n", ", line 2", "accepted: a whole number"),
    "zero input": (HEAD + b"0,0,1\n", ", line 2", "input_tokens is 0; accepted: 1 or more"),
    "zero output": (HEAD + b"0,1,0\n", ", line 2", "output_tokens is 0; accepted: 1 or more"),
    "clocks of sessions": (
        b"arrival_s,input_tokens,output_tokens,session\n0,1,1,a\n5,1,1,a\n0,1,1,b\n",
        ", line 4",
        "time starts again at 0 with session 'b'; sessions have their own clocks here: superpose them",
    ),
    "row behind a prompt of two lines": (
        b'arrival_s,input_tokens,output_tokens,prompt\n0,1,1,"a\nb"\n0,x,1,c\n',
        ", line 4",
        "input_tokens is 'x'",
    ),
    "target out of range": (
        b"arrival_s,input_tokens,output_tokens,ttft_s\n0,1,1,0\n",
        ", line 2",
        "ttft_s is 0.0; accepted: ",
    ),
    "limit below the output": (
        b"arrival_s,input_tokens,output_tokens,max_output_tokens\n0,1,8,7\n",
        ", line 2",
        "max_output_tokens is 7",
    ),
    "id twice": (b"id,arrival_s,input_tokens,output_tokens\na,0,1,1\na,1,1,1\n", ", line 3", "id 'a' occurs twice"),
    "id empty": (b"id,arrival_s,input_tokens,output_tokens\n,0,1,1\n", ", line 2", "id is ''"),
    "block not a number": (
        b"arrival_s,input_tokens,output_tokens,prefix_blocks\n0,1,1,1 x\n",
        ", line 2",
        "prefix_blocks is 'x'",
    ),
    "not UTF-8": (HEAD + b"0,1,1\n0,1,\xff\n", ", line 3", "byte ff is not UTF-8; accepted: UTF-8"),
    "another archive": (b"PK\x03\x04", " is a zip file or Excel workbook", "accepted: text in UTF-8, plain or packed"),
    "UTF-16": ("arrival_s".encode("utf-16"), " is a UTF-16 file", "accepted: text in UTF-8"),
    "binary": (bytes(range(254, 0, -1)), ", line 1", "byte fe is not UTF-8"),
    "zeros": (bytes(64), ", line 1", "the columns are '\\x00"),
    "gzip cut short": (PACKED[:-20], " is a broken gzip file", "end-of-stream"),
    "gzip damaged": (PACKED[:30] + b"\xff\xff\xff" + PACKED[33:], " is a broken gzip file", "broken"),
    "gzip with another sum": (PACKED[:-8] + bytes(8), " is a broken gzip file", "CRC check failed"),
    "gzip header only": (b"\x1f\x8b\x00\x00", " is a broken gzip file", "end-of-stream"),
    "azure clock": (AZURE + b"16/11/2023 18:15,1,1\n", ", line 2", "TIMESTAMP is '16/11/2023 18:15'; accepted: a time"),
    "azure month 13": (AZURE + b"2023-13-16 18:15:46,1,1\n", ", line 2", "month must be in 1..12"),
    "burstgpt below 0": (BURSTGPT + b"3,GPT-4,-1,1\n", ", line 2", "Request tokens is -1; accepted: 1 or more"),
    "burstgpt all failed": (BURSTGPT + b"0,GPT-4,1,0\n", ", line 2", "Response tokens is 0; accepted: 1 or more"),
    "mooncake not JSON": (MOONCAKE + b'{"timestamp": 6,\n', ", line 2", "truncated; accepted: a JSON object a line"),
    "mooncake without a key": (b'{"timestamp": 6}\n', ", line 1", "the keys are 'timestamp'; accepted: Headway"),
    "mooncake without a key in line 2": (MOONCAKE + b'{"timestamp": 6}\n', ", line 2", "input_length is ''; accepted"),
    "mooncake beyond any time": (
        MOONCAKE + MOONCAKE.replace(b"5,", b"5" + b"0" * 400 + b",", 1),
        ", line 2",
        "timestamp is '5000",
    ),
    "mooncake in seconds": (
        b"".join(MOONCAKE.replace(b"5,", b"%.1f," % time, 1) for time in (0, 0.5, 1)),
        ": timestamp is taken for ms, and arrivals would be 0.0005 s apart on average",
        "accepted: 0.01 to 300 s, or the unit told by --time-unit s|ms|us|ns",
    ),
    "mooncake in nanoseconds": (
        MOONCAKE + MOONCAKE.replace(b"5,", b"5000000000,", 1),
        ": timestamp is taken for ms, and arrivals would be 5e+06 s apart",
        "--time-unit",
    ),
    "mooncake in parts of a millisecond": (
        b"".join(MOONCAKE.replace(b"5,", b"%.1f," % time, 1) for time in (61.5, 1000)),
        ": timestamp is taken for ms, and 61.5 is no whole number",
        "accepted: whole ms, or the unit told by --time-unit",
    ),
    "mooncake at dates": (
        b"".join(MOONCAKE.replace(b"5,", b"%d," % time, 1) for time in (1700000000, 1700000030)),
        ": timestamp is taken for ms, and the first, 1700000000, is a date in s since 1970",
        "or the unit told by --time-unit",
    ),
    "dates in milliseconds": (
        HEAD + b"1700000000000,1,1\n1700000000500,1,1\n",
        ": arrival_s is taken for s, and the first, 1700000000000, is a date in ms",
        "accepted: s",
    ),
    "burstgpt in milliseconds": (
        BURSTGPT + b"0,GPT-4,1,1\n9000,GPT-4,1,1\n", ": Timestamp is taken for s", "9e+03 s apart on average",
    ),
    "array of others": (b'[{"at": 0, "tokens": 3}]', ", item 1", "the keys are 'at, tokens'; accepted: Headway"),
    "array of numbers": (b"[1]", ", item 1", "accepted: a JSON object"),
    "arrays without end": (b"[" * 100_000, " is no array of JSON objects", "recursion"),
    "object of many lines": (b'{\n "others": []\n}', ", object 1", "the keys are 'others'; accepted"),
    "array of nothing": (b"[]", " is empty", "accepted: Headway"),
    "array cut short": (b'[{"arrival_s": 0,', " is no array of JSON objects", "truncated"),
    "object without a key": (
        b'[{"arrival_s":0,"input_tokens":1,"output_tokens":1},\n {"arrival_s":1,"input_tokens":1}]',
        ", item 2",
        "output_tokens is ''; accepted: a whole number",
    ),
    "object with a misspelt target": (
        b'{"arrival_s":0,"input_tokens":1,"output_tokens":1,"ttft":1}\n', ", line 1", "'ttft'; accepted: ttft_s",
    ),
    "object with a prompt of messages": (
        b'{"arrival_s":0,"input_tokens":1,"output_tokens":1,"prompt":[{"role":"user"}]}\n',
        ", line 1",
        "prompt is \"[{'role': 'user'}]\"; accepted: a number or text",
    ),
    "object with half a token": (
        b'[{"arrival_s":0,"input_tokens":1.5,"output_tokens":1}]', ", item 1", "'1.5'; accepted: a whole number",
    ),
    "bailian in mooncake's clothes": (
        MOONCAKE.replace(b"[0, 1]", b"[0, 1, 2]"),
        ", line 1",
        "hash_ids names 3 blocks, but 600 tokens fill 2; accepted: blocks of 512 tokens",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_gives_one_clear_error(name: str, tmp_path: Path) -> None:
    data, where, says = BAD[name]
    path = tmp_path / "trace.csv"
    path.write_bytes(data)
    with pytest.raises(TraceError) as caught:
        read_trace(path, strict=True)
    message = str(caught.value)
    assert message.startswith(f"{path}{where}")
    assert says in message
    assert len(message) < len(str(path)) + 420
    assert message.isprintable()


def test_a_path_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing.csv"
    for path, reason in ((missing, "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(TraceError) as caught:
            read_trace(path)
        assert str(caught.value) == f"{path} cannot be read: {reason}"


def test_a_gz_name_on_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(HEAD + b"0,1,1\n")
    with pytest.raises(TraceError, match=r"is named \.gz but does not start as a gzip file does"):
        read_trace(path)


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_is_refused(limit: int, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=f"limit is {limit}; accepted: 1 or more"):
        read_trace(tmp_path, limit=limit)

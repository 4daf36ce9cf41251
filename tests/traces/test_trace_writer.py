from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headway.core.slo import MAX_TARGET_S, Slo
from headway.errors import TraceError
from headway.traces import TraceRequest, read_trace, write_trace

PLAIN = [TraceRequest("0", 0.0, 10, 20), TraceRequest("1", 0.1, 1, 1)]

TARGETS = st.none() | st.floats(0, MAX_TARGET_S, exclude_min=True) | st.integers(1, 99)
TEXT = st.text(st.characters(codec="utf-8"), max_size=20)


@st.composite
def traces(draw: st.DrawFn) -> list[TraceRequest]:
    """Any trace that starts at 0, with ties and every kind of text."""
    gaps = draw(st.lists(st.just(0.0) | st.floats(0, 1e6), max_size=8))
    ids = draw(st.lists(TEXT.filter(bool), min_size=len(gaps) + 1, max_size=len(gaps) + 1, unique=True))
    tokens = st.integers(1, 10**9)
    requests: list[TraceRequest] = []
    for name, gap in zip(ids, [0.0, *gaps], strict=True):
        output_tokens = draw(tokens)
        request = TraceRequest(
            id=name,
            arrival_s=requests[-1].arrival_s + gap if requests else 0.0,
            input_tokens=draw(tokens),
            output_tokens=output_tokens,
            max_output_tokens=draw(st.none() | st.integers(output_tokens, 10**10)),
            tenant=draw(TEXT),
            prompt=draw(st.none() | TEXT.filter(bool)),
            session=draw(st.none() | TEXT.filter(bool)),
            prefix_blocks=tuple(draw(st.lists(st.integers(-(2**63), 2**64 - 1), max_size=4))),
            priority=draw(st.integers(-9, 9)),
            slo=Slo(draw(TARGETS), draw(TARGETS), draw(TARGETS)),
        )
        requests.append(request)
    return requests


@example(requests=[replace(PLAIN[0], prompt="a\n\ufeffb")], suffix=".csv")
@given(requests=traces(), suffix=st.sampled_from([".csv", ".csv.gz"]))
def test_what_is_written_reads_back_the_same(
    requests: list[TraceRequest], suffix: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / f"round{suffix}"
    write_trace(requests, path)
    assert read_trace(path) == requests


def test_only_columns_that_say_something_are_written(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    write_trace(PLAIN, path)
    assert path.read_bytes() == b"arrival_s,input_tokens,output_tokens\n0.0,10,20\n0.1,1,1\n"
    write_trace([replace(PLAIN[0], id="a", prompt='"x",\r', slo=Slo(deadline_s=2)), PLAIN[1]], path)
    assert path.read_bytes() == (
        b"arrival_s,input_tokens,output_tokens,id,prompt,deadline_s\n"
        b'0.0,10,20,a,"""x"",\r",2.0\n'
        b"0.1,1,1,1,,\n"
    )


def test_numbers_of_numpy_are_written_as_numbers(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    write_trace([replace(PLAIN[0], slo=Slo(ttft_s=np.float64(0.25)))], path)
    assert path.read_text().endswith("ttft_s\n0.0,10,20,0.25\n")


def test_gzip_has_no_time_stamp(tmp_path: Path) -> None:
    first, second = tmp_path / "first.csv.gz", tmp_path / "second.csv.gz"
    write_trace(PLAIN, first)
    write_trace(PLAIN, second)
    packed = first.read_bytes()
    assert packed == second.read_bytes()
    assert packed[4:8] == bytes(4)  # RFC 1952: MTIME
    assert gzip.decompress(packed).startswith(b"arrival_s,")


@pytest.mark.parametrize(
    ("requests", "says"),
    [
        ([], "there are no requests to write"),
        (PLAIN[::-1], "request '0' arrives before '1'"),
        ([PLAIN[0], PLAIN[0]], "an id occurs twice"),
        ([replace(PLAIN[0], tenant="\ud800")], "cannot be written as UTF-8"),
    ],
)
def test_what_could_not_be_read_back_is_not_written(
    requests: list[TraceRequest], says: str, tmp_path: Path
) -> None:
    path = tmp_path / "trace.csv"
    with pytest.raises(TraceError, match=says):
        write_trace(requests, path)
    assert not path.exists()


def test_a_path_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"trace\.csv cannot be written: No such file"):
        write_trace(PLAIN, tmp_path / "missing" / "trace.csv")

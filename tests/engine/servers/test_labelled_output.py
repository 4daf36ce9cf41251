"""Real output of real processes, under a name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headway.engine.servers.server_process import LabelledOutput, ServerProcess


def said(program: str, log: Path) -> ServerProcess:
    """A process that has said all it has to say."""
    with log.open("wb") as output:
        process = ServerProcess(
            [], ("127.0.0.1", 1), log=output, label="lp-0", program=(sys.executable, "-c", program)
        )
    process.wait()
    return process


def test_each_line_has_the_name_in_front(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = said(
        "import sys; print('one', flush=True); print('two\\r', file=sys.stderr); print('three', end='')", log
    )
    assert process.last_words() == ""  # also waits for what was written last
    assert sorted(log.read_text().splitlines()) == ["[lp-0] one", "[lp-0] three", "[lp-0] two"]


@pytest.mark.parametrize(
    ("last", "words"),
    [
        ("error: no memory for a block", "no memory for a block"),
        ("ValueError: too long", "ValueError: too long"),
        ("vllm serve: error: unrecognized arguments: --x", "vllm serve: error: unrecognized arguments: --x"),
        ("  Value error, max_model_len is too long", "Value error, max_model_len is too long"),
        ("(EngineCore pid=12) torch.OutOfMemoryError: no room", "torch.OutOfMemoryError: no room"),
        ("(APIServer pid=7) INFO 11-21 10:00:00 [x.py:1] ready", ""),
        ("This Error: is prose", ""),
        ("x" * 1000, ""),
        ("ValueError: " + "x" * 1000, "ValueError: " + "x" * 288),
    ],
)
def test_the_reason_is_the_last_line_that_tells_of_an_error(tmp_path: Path, last: str, words: str) -> None:
    program = f"print({last!r}); print('bye')"
    assert said(program, tmp_path / "log").last_words() == words


def test_of_several_errors_it_is_the_last(tmp_path: Path) -> None:
    process = said("print('OSError: first'); print('error: second'); print('third')", tmp_path / "log")
    assert process.last_words() == "second"


def test_without_a_label_nothing_is_remembered(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        program = (sys.executable, "-c", "print('error: x')")
        process = ServerProcess([], ("127.0.0.1", 1), log=log, program=program)
    process.wait()
    assert process.last_words() == ""
    assert (tmp_path / "log").read_text() == "error: x\n"


def test_a_server_never_waits_for_somebody_to_read(tmp_path: Path) -> None:
    """The reader of what is passed on is gone; more is written than a pipe holds."""
    reader, writer = os.pipe()
    output = LabelledOutput("0", writer)
    os.close(reader)
    process = subprocess.Popen(
        [sys.executable, "-c", "print(('x' * 99 + '\\n') * 20000)"], stdout=output.pipe
    )
    output.start()
    os.close(writer)
    assert process.wait() == 0
    assert output.last_words() == ""


def test_a_line_without_an_end_is_passed_on_in_pieces(tmp_path: Path) -> None:
    said("print('x' * 100_000, end='')", tmp_path / "log").last_words()
    lines = (tmp_path / "log").read_text().splitlines()
    assert [len(line) for line in lines] == [7 + 65536, 7 + 100_000 - 65536]

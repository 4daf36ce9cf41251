"""The command line, run within the test's own process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from headway.cli import main


class Ended(NamedTuple):
    """Exit status and output of a command."""

    code: int
    out: str
    err: str


Headway = Callable[..., Ended]
Refused = Callable[..., str]


def words(flags: Mapping[str, object]) -> list[str]:
    """Flags by name, `_` for `-`, as a command line has them."""
    return [word for name, value in flags.items() for word in (f"--{name.replace('_', '-')}", str(value))]


@pytest.fixture
def headway(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Headway:
    """Runs `headway` with the words it is given."""

    def run(*given: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["headway", *map(str, given)])
        with pytest.raises(SystemExit) as raised:
            main()
        assert isinstance(raised.value.code, int | None)
        printed = capsys.readouterr()
        return Ended(raised.value.code or 0, printed.out, printed.err)

    return run


@pytest.fixture
def refused(headway: Headway) -> Refused:
    """Runs `headway` with words that it does not accept; what it says of them."""

    def run(*given: object) -> str:
        ended = headway(*given)
        assert (ended.code, ended.out) == (2, "")
        return ended.err

    return run


@pytest.fixture
def refused_in_one_line(refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Refused:
    """The same; its last line, which is the error, after nothing was written where it ran."""

    def run(*given: object) -> str:
        monkeypatch.chdir(tmp_path)
        last = refused(*given).splitlines()[-1]
        assert last.startswith("error: ")
        assert list(tmp_path.iterdir()) == []
        return last

    return run

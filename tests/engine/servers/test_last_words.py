"""A server's first process ends with the reason that another of its processes found."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from headway.engine.reason import REASON_FILE, reason_left
from headway.errors import ConfigError, HeadwayError

CHILD = """
from headway.engine.reason import reason_left
from headway.errors import ConfigError
with reason_left():
    raise {error}
"""
PARENT = """
import subprocess, sys
from headway.engine.reason import hear_reason
hear_reason()
child = subprocess.run([sys.executable, "-c", sys.argv[1]], stderr=subprocess.DEVNULL)
if child.returncode:
    raise RuntimeError("one of mine has failed")
"""


def ended(error: str, tmp_path: Path) -> list[str]:
    """The last lines of a parent when a child of its raises this error; none of their files may be left."""
    done = subprocess.run(
        [sys.executable, "-c", PARENT, CHILD.format(error=error)],
        env={"TMPDIR": str(tmp_path), "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert list(tmp_path.iterdir()) == []
    return done.stderr.splitlines()[-2:]


def test_the_reason_is_the_last_line(tmp_path: Path) -> None:
    said = ended("ConfigError('no memory for a block')", tmp_path)
    assert said == ["RuntimeError: one of mine has failed", "error: no memory for a block"]


def test_what_was_not_raised_on_purpose_is_left_to_its_traceback(tmp_path: Path) -> None:
    assert ended("ValueError('a bug')", tmp_path)[-1] == "RuntimeError: one of mine has failed"


TIDIED = """
import os
from headway.engine.reason import REASON_FILE, hear_reason
hear_reason()
os.unlink(os.environ[REASON_FILE])
"""


def test_a_file_that_was_tidied_away_is_no_matter(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TIDIED],
        env={"TMPDIR": str(tmp_path), "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("error", [ConfigError("not so"), HeadwayError("nor so")])
def test_an_error_goes_on_with_or_without_somebody_to_hear_of_it(
    error: HeadwayError, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(REASON_FILE, raising=False)
    with pytest.raises(HeadwayError) as raised, reason_left():
        raise error
    assert raised.value is error
    with tempfile.NamedTemporaryFile() as heard:
        monkeypatch.setenv(REASON_FILE, heard.name)
        with pytest.raises(HeadwayError), reason_left():
            raise error
        assert heard.read().decode() == str(error)

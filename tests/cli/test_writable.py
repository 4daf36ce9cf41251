"""What is tried of a file before anything long begins; nothing of it is left behind."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.cli.writable import check_engine_files, check_file, check_replaceable
from headway.engine.settings import EngineSettings
from headway.errors import ConfigError

CHECKS = [check_file, check_replaceable]


@pytest.mark.parametrize("check", CHECKS)
def test_a_file_that_is_there_stays_and_a_new_one_is_not_made(
    tmp_path: Path, check: Callable[[str, Path], None]
) -> None:
    old, new = tmp_path / "old", tmp_path / "deep" / "new"
    old.write_text("precious")
    check("--out", old)
    check("--out", new)
    assert old.read_text() == "precious"
    assert sorted(tmp_path.iterdir()) == [new.parent, old]
    assert list(new.parent.iterdir()) == []


@pytest.mark.parametrize("check", CHECKS)
def test_a_folder_where_nothing_can_be_made_is_refused(check: Callable[[str, Path], None]) -> None:
    with pytest.raises(ConfigError, match=r"^--out /proc/none/x cannot be written \(.+\); accepted: "):
        check("--out", Path("/proc/none/x"))


def test_a_link_into_nowhere_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "none" / "file")
    with pytest.raises(ConfigError, match="No such file or directory"):
        check_file("--out", link)


@pytest.mark.parametrize("check", CHECKS)
def test_a_folder_is_no_file(tmp_path: Path, check: Callable[[str, Path], None]) -> None:
    with pytest.raises(ConfigError, match="Is a directory"):
        check("--out", tmp_path)


@pytest.mark.parametrize("check", CHECKS)
def test_nobody_need_read_a_pipe_yet(tmp_path: Path, check: Callable[[str, Path], None]) -> None:
    os.mkfifo(tmp_path / "pipe")
    check("--out", tmp_path / "pipe")


def test_an_engine_that_writes_nothing_is_asked_for_nothing() -> None:
    check_engine_files(EngineSettings())

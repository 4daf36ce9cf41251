from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.whole_file import PARTIALS, appearing, left_behind, partial_path, write_whole


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new" / "file.json"


@pytest.fixture(params=[0o022, 0o027, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_what_is_written_replaces_what_was_there_and_leaves_nothing_beside_it(path: Path) -> None:
    for content in (b"first", b"second, and longer", b""):
        write_whole(path, content)
        assert path.read_bytes() == content
        assert list(path.parent.iterdir()) == [path]


def test_the_mode_is_that_of_any_new_file(path: Path, umask: int) -> None:
    write_whole(path, b"")
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask


def test_a_reader_sees_the_old_file_until_the_new_one_is_whole(path: Path) -> None:
    write_whole(path, b"old")
    with appearing(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
        assert list(path.parent.glob(PARTIALS)) == [partial_path(path)]
    assert path.read_bytes() == b"new"


def test_a_half_written_file_is_left_behind_once_its_process_has_ended(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    folder = tmp_path / "below"
    folder.mkdir()
    left = folder / f".file.json.{ended.pid}.partial"
    for file in (left, partial_path(folder / "mine"), folder / ".file.1.partial", folder / ".notes.partial"):
        file.touch()
    assert list(left_behind(tmp_path)) == [left]


def test_an_error_halfway_leaves_the_old_file_alone(path: Path) -> None:
    write_whole(path, b"old")
    with pytest.raises(TypeError), appearing(path) as file:
        file.writelines([b"half", "no bytes"])  # type: ignore[list-item]
    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path]


def test_a_place_that_cannot_be_written_is_an_error_and_stays_as_it_is(path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(OSError, match=re.escape(str(path))):
        write_whole(path, b"")
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("before", [b"old", None])
def test_a_link_stays_one_and_what_it_leads_to_is_replaced(
    tmp_path: Path, path: Path, before: bytes | None
) -> None:
    if before is not None:
        write_whole(path, before)
    link = tmp_path / "link.json"
    link.symlink_to(Path("new") / "file.json")
    write_whole(link, b"new")
    assert link.is_symlink()
    assert path.read_bytes() == b"new"
    assert not path.is_symlink()
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("through_a_link", [False, True])
def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path, through_a_link: bool) -> None:
    pipe = link = tmp_path / "pipe"
    os.mkfifo(pipe)
    if through_a_link:
        link = tmp_path / "link"
        link.symlink_to(pipe)
    reader = os.open(pipe, os.O_RDWR)  # both ways: else opening it would wait for a writer
    write_whole(link, b"all of it")
    assert os.read(reader, 100) == b"all of it"
    os.close(reader)
    assert pipe.is_fifo()
    assert link.is_symlink() == through_a_link

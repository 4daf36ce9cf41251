from __future__ import annotations

from pathlib import Path

import pytest

from headway.errors import RecordError
from headway.json_file import made_once, read_json, write_json


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "kept.json"
    assert read_json(path, dict[str, int]) is None
    write_json(path, {"a": 1})
    assert path.read_text() == '{\n  "a": 1\n}\n'
    assert read_json(path, dict[str, int]) == {"a": 1}


@pytest.mark.parametrize("content", [b'{"a"', b'{"a": "text"}', b'{"\xff": 1}'])
def test_anything_else_is_an_error_that_names_the_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "kept.json"
    path.write_bytes(content)
    with pytest.raises(RecordError, match=r"kept\.json"):
        read_json(path, dict[str, int])


def test_what_is_no_file_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="cannot be read"):
        read_json(tmp_path, dict[str, int])


def test_what_is_kept_is_not_made_again(tmp_path: Path) -> None:
    made: list[int] = []

    def make() -> list[int]:
        made.append(1)
        return [*made]

    file = tmp_path / "kept.json"
    assert made_once(file, list[int], make) == [1]
    assert made_once(file, list[int], make) == [1]
    assert made == [1]
    file.write_text("{")
    with pytest.raises(RecordError, match=r"kept\.json"):
        made_once(file, list[int], make)

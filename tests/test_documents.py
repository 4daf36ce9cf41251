"""What the documents name exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("src", "reproduce", "bench", "tests", "models", "deploy", "docs", "adr", "requirements")
FILES = {path.as_posix() for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()}
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("adr/*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("bench/*.md")]
)
PATH = re.compile(r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|json|yaml|md|html|js))`")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_path_that_is_named_is_there(document: Path) -> None:
    if document.name == "CHANGELOG.md":
        pytest.skip("tells of files as they were")
    named = PATH.findall(document.read_text())
    assert not [path for path in named if not any(file.endswith(f"/{path}") for file in FILES)]

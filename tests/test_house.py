"""The house keeps to its measures: functions, files, types and docstrings (`make lint`)."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
CODE = {
    "src": ROOT / "src" / "headway",
    "reproduce": ROOT / "reproduce" / "headway_reproduce",
    "bench": ROOT / "bench",
}
MOST_LINES_A_FUNCTION = 60
FEWEST_LINES_OF_A_FILE = 40
MOST_FILES_OF_THE_WALK, MOST_LINES_OF_THE_WALK = 8, 1_200
SMALL_WITH_ONE_IMPORTER: set[str] = set()
"""Files that may be small and have one importer, each for a reason that its own docstring gives."""
STRANGE_BEGINNING = re.compile(r"(It|Its|Those|The same)\b")
UNTYPED = re.compile(
    r"\b(scheduler|engine|policy|core): Any\b|def (\w+_)?(scheduler|engine|policy)\([^)]*\) -> Any\b"
)

Function = ast.FunctionDef | ast.AsyncFunctionDef


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def functions() -> Iterator[tuple[Path, Function]]:
    for folder in CODE.values():
        for file in files(folder):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, Function):
                    yield file, node


def imported(file: Path) -> Iterator[str]:
    """The modules that a file imports, names of members too."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_no_function_is_longer_than_a_page() -> None:
    long = [
        f"{file.relative_to(ROOT)}:{node.lineno} {node.name}"
        for file, node in functions()
        if (node.end_lineno or 0) - node.lineno >= MOST_LINES_A_FUNCTION
    ]
    assert not long


def test_no_small_file_has_one_importer() -> None:
    importers: dict[str, set[Path]] = defaultdict(set)
    for folder in CODE.values():
        for file in files(folder):
            for module in imported(file):
                importers[module].add(file)
    torn = []
    for file in files(CODE["src"]):
        module = ".".join(file.relative_to(ROOT / "src").with_suffix("").parts)
        small = len(file.read_text().splitlines()) < FEWEST_LINES_OF_A_FILE
        if small and file.name != "__init__.py" and len(importers[module]) == 1:
            torn.append(module)
    assert set(torn) == SMALL_WITH_ONE_IMPORTER


def test_a_class_of_the_package_has_a_name_of_its_own() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for file in files(CODE["src"]):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith(
                "_"
            ):  # the others are their file's
                found[node.name].append(str(file.relative_to(CODE["src"])))
    assert not {name: where for name, where in found.items() if len(where) > 1}


def test_docstrings_name_what_they_tell_of() -> None:
    strange = [
        f"{file.relative_to(ROOT)}:{number}"
        for file in files(CODE["src"])
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if STRANGE_BEGINNING.match(line.strip().removeprefix('"""')) and line.strip().startswith('"""')
    ]
    assert not strange


def test_a_request_through_the_engine_is_a_short_read() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    _, listed = text.split("Read these files in order", 1)
    walk = re.findall(r"`(engine/[\w/]+\.py)`", listed.partition("\n\n1. ")[0])
    files_read = [CODE["src"] / path for path in walk]
    assert {"arrivals.py", "scheduler.py", "outcomes.py"} <= {file.name for file in files_read}
    assert len(files_read) <= MOST_FILES_OF_THE_WALK
    assert sum(len(file.read_text().splitlines()) for file in files_read) <= MOST_LINES_OF_THE_WALK


def test_schedulers_engines_and_policies_have_types() -> None:
    assert not [
        str(file) for folder in CODE.values() for file in files(folder) if UNTYPED.search(file.read_text())
    ]

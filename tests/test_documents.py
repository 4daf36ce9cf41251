"""Everything that the documents name exists: files, links, commands, metrics."""

from __future__ import annotations

import ast
import re
import shlex
from functools import cache
from pathlib import Path

import pytest
import typer.main

from headway import cli

ROOT = Path(__file__).parents[1]
FOLDERS = ("src", "reproduce", "bench", "tests", "models", "deploy", "docs", "adr", "requirements")
FILES = {path.as_posix() for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()}
DOCUMENTS = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("adr/*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("bench/*.md"),
        *ROOT.glob("deploy/*.md"),
    ]
)
PATH = re.compile(r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|json|yaml|md|html|js))`")
LINK = re.compile(r"\]\(\s*([^)\s]+)\s*\)")
FENCE = re.compile(r"(?ms)^ *```[a-z]*\n(.*?)^ *```$")
SPAN = re.compile(r"(?s)`([^`]+)`")
GROUP = typer.main.get_command(cli.app)


def anchors(text: str) -> set[str]:
    """The names that GitHub gives to headings."""
    headings = re.findall(r"(?m)^#+ (.*)$", re.sub(FENCE, "", text))
    plain = (re.sub(r"[^\w\- ]", "", re.sub(r"\]\([^)]*\)", "", heading).lower()) for heading in headings)
    return {heading.strip().replace(" ", "-") for heading in plain}


def commands(text: str) -> list[list[str]]:
    """The arguments of every `headway` and `python bench/...` that stands in code, up to `--`, pipes and comments."""
    code = [*FENCE.findall(text), *(span for span in SPAN.findall(re.sub(FENCE, "", text)))]
    lines = [line for each in code for line in each.replace("\\\n", " ").splitlines()]
    lines += [" ".join(span.split()) for span in SPAN.findall(re.sub(FENCE, "", text)) if "\n" in span]
    found = []
    for line in lines:
        if match := re.match(r"(?:\S*/)?(headway|python) ([\w./-]+.*)", line.strip()):
            try:
                tokens = shlex.split(match[2], comments=True)
            except ValueError:
                continue
            found.append([match[1], *tokens[: tokens.index("--") if "--" in tokens else None]])
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_path_that_is_named_is_there(document: Path) -> None:
    if document.name == "CHANGELOG.md":
        pytest.skip("tells of files as they were")
    named = PATH.findall(document.read_text())
    assert not [path for path in named if not any(file.endswith(f"/{path}") for file in FILES)]


def test_anchors_are_githubs() -> None:
    text = "# A `b`, and [c](d.md)\n\n```sh\n# no heading\n```\n## vLLM's own\n"
    assert anchors(text) == {"a-b-and-c", "vllms-own"}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_link_inside_leads_somewhere(document: Path) -> None:
    broken = []
    for link in LINK.findall(re.sub(FENCE, "", document.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        file = (document.parent / path).resolve() if path else document
        if not file.exists() or (anchor and anchor not in anchors(file.read_text())):
            broken.append(link)
    assert not broken


def test_links_and_commands_are_found() -> None:
    texts = [document.read_text() for document in DOCUMENTS]
    assert sum(len(LINK.findall(text)) for text in texts) > 150
    assert sum(len(commands(text)) for text in texts) > 100
    text = "```sh\n.venv/bin/headway serve demo \\\n  --port 1 -- --dtype x  # why\n```\n`headway\nplan --gpus 2`"
    found = commands(text)
    assert found == [["headway", "serve", "demo", "--port", "1"], ["headway", "plan", "--gpus", "2"]]


@cache
def flags(command: str) -> set[str]:
    """The flags of a subcommand."""
    assert isinstance(GROUP, cli.LazyGroup)
    _, loaded, _ = GROUP.resolve_command(typer.Context(GROUP), [command])
    return {flag for option in loaded.params for flag in (*option.opts, *option.secondary_opts)} | {"--help"}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_command_and_flag_is_there(document: Path) -> None:
    wrong = []
    for program, first, *rest in commands(document.read_text()):
        if program == "python":
            wrong += [first] if re.match(r"bench/[a-z]", first) and not (ROOT / first).exists() else []
        elif first in cli.COMMANDS:
            given = {each.partition("=")[0] for each in rest if re.match(r"--[a-z]", each)}
            wrong += [f"{first} {flag}" for flag in given - flags(first)]
        else:
            wrong += [first] if first.islower() and not first.startswith("-") else []
    assert not wrong


def test_the_reference_names_every_metric() -> None:
    text = (ROOT / "docs" / "reference.md").read_text()
    engine = ast.parse((ROOT / "src/headway/engine/vllm/metrics.py").read_text())
    tables = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in engine.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id.isupper()
        if isinstance(node.value, ast.Dict)
    }
    names = {f"headway_{name}" for name in tables["_TOTALS"]}
    names |= {name for table in ("_SECONDS", "_LABELLED") for name, _ in tables[table].values()}
    gateway = (ROOT / "src/headway/gateway/book/metrics.py").read_text()
    names |= set(re.findall(r"\b(?:counter|gauge|single)\(\s*\"(\w+)\"", gateway))
    assert len(names) > 50
    assert {name for name in names if f"`{name}`" not in text} == set()

"""Limits on texts for people, measured like code: length of sentences, words a page, subjects with names (`make
lint`).
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
CHANGELOG = ROOT / "CHANGELOG.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "adr").glob("*.md"))]
OTHERS = (
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "RELEASING.md",
    "SECURITY.md",
    "bench/README.md",
    "deploy/README.md",
)
READ = [*PAGES, CHANGELOG, *(ROOT / name for name in OTHERS)]
SOURCES = sorted(
    file for folder in ("src/headway", "bench", "reproduce") for file in (ROOT / folder).rglob("*.py")
)
PACKAGES = sorted(
    folder for folder in (ROOT / "src" / "headway").iterdir() if (folder / "__init__.py").exists()
)

MOST_WORDS_A_SENTENCE = 18
"""In the mean of a page."""
MOST_WORDS = {"README.md": 900, "CHANGELOG.md": 1_500, "all pages": 25_000, "a decision": 450}
LEAST_SENTENCES = 900
"""Of all pages together: fewer are found only by a measure that is broken."""
HUMAN = re.compile(r"(?i)clients?|users?|person|people|operators?|maintainers?|readers?")
"""Nouns before which "who" stands for a human being."""
CODE = re.compile(r"(?ms)^( *)```.*?^\1```[^\n]*$|<!--.*?-->")
ITEM = re.compile(r"(?:[-*]|\d+\.)\s+")
LINK = re.compile(r"\]\([^)]*\)")
NEXT_SENTENCE = re.compile(r"(?<=[.!?])[\"')*_`]*\s+(?=[\"'(*_`\[]*[A-Z0-9`])")
WORD = re.compile(r"\S*[A-Za-z0-9]\S*")
PERSON = re.compile(r"(?i)(?:(\w+)\s+)?\b(who|whom|whoever|nobody|everybody|somebody|anybody|everyone)\b")


def words(text: str) -> int:
    """The number of words: every token with a letter or a digit, in tables and code too."""
    return len(WORD.findall(text))


def paragraphs(text: str) -> list[str]:
    """Paragraphs and list items, without code, tables, headings and pictures."""
    found: list[list[str]] = [[]]
    for line in map(str.strip, CODE.sub("\n\n", text).splitlines()):
        if not line or line.startswith(("|", "#", "!")):
            found.append([])
        elif item := ITEM.match(line):
            found.append([line[item.end() :]])
        else:
            found[-1].append(line)
    return [" ".join(lines) for lines in found if lines]


def sentences(text: str) -> list[int]:
    """Words of each sentence. Code between backticks counts as one word, a link by its text."""
    plain = (re.sub(r"`[^`]*`", "code", LINK.sub("]", paragraph)) for paragraph in paragraphs(text))
    return [count for part in plain for each in NEXT_SENTENCE.split(part) if (count := words(each))]


def persons(text: str) -> list[str]:
    """Words for human beings where something else is meant, as far as a pattern can tell."""
    return [
        match[0]
        for match in PERSON.finditer(text)
        if not (match[2].lower() in ("who", "whom") and HUMAN.fullmatch(match[1] or ""))
    ]


def prose(source: str) -> str:
    """Comments and strings of Python code, and of f-strings what is not code."""
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return "\n".join(re.sub(r"\{[^{}]*\}", "", token.string) for token in tokens if token.type in kinds)


def test_the_measure_counts_sentences_and_leaves_out_what_is_not_prose() -> None:
    text = (
        "# A title of five words\n\nOne two three. Four `code with words` six! Seven\neight.\n\n"
        "| a | table | row |\n\n```sh\nmake demo. Again.\n```\n\n- An item here\n- [A link](to/a.md) more. 0.5 s\n"
    )
    assert sentences(text) == [3, 3, 2, 3, 3, 2]
    assert words("| 0.5 | – | a `b` |") == 3


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Who is late cannot be helped", ["Who"]),
        ("nobody keeps it", ["nobody"]),
        ("for people who run LLMs and clients who leave", []),
        ("a request who waits", ["request who"]),
        ("`ranks_nobody` is a name", []),
    ],
)
def test_the_measure_finds_persons_where_there_are_none(text: str, found: list[str]) -> None:
    assert persons(text) == found


def test_the_measure_reads_comments_and_strings_alone() -> None:
    source = 'who = 1  # why nobody\nprint(f"whoever waits")\n'
    assert [each.split()[-1] for each in persons(prose(source))] == ["nobody", "whoever"]


def mean_sentence(page: Path) -> float:
    found = sentences(page.read_text())
    assert found, f"no sentence in {page.name}"
    return sum(found) / len(found)


@pytest.mark.parametrize("page", READ, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_sentences_are_short_in_the_mean(page: Path) -> None:
    assert mean_sentence(page) <= MOST_WORDS_A_SENTENCE


def test_pages_have_sentences() -> None:
    assert sum(len(sentences(page.read_text())) for page in PAGES) >= LEAST_SENTENCES


def test_documents_keep_to_their_words() -> None:
    counts = {page: words(page.read_text()) for page in [*PAGES, CHANGELOG]}
    assert min(counts.values()) > 0
    assert counts[README] <= MOST_WORDS["README.md"]
    assert counts[CHANGELOG] <= MOST_WORDS["CHANGELOG.md"]
    assert sum(counts[page] for page in PAGES) <= MOST_WORDS["all pages"]
    decisions = {page.name: count for page, count in counts.items() if page.parent.name == "adr"}
    assert {name for name, count in decisions.items() if count > MOST_WORDS["a decision"]} == set()


@pytest.mark.parametrize("page", READ, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_pages_call_requests_by_their_name(page: Path) -> None:
    assert persons(page.read_text()) == []


def docstrings(file: Path) -> list[str]:
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = (node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, holders))
    return [text for node in nodes if (text := ast.get_docstring(node))]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_docstrings_have_short_sentences_in_the_mean(package: Path) -> None:
    texts = [text for file in package.rglob("*.py") for text in docstrings(file)]
    found = [count for text in texts for count in sentences(text)]
    assert len(found) > 50
    assert sum(found) / len(found) <= MOST_WORDS_A_SENTENCE


def test_code_calls_requests_by_their_name() -> None:
    assert len(SOURCES) > 300
    found = {str(file.relative_to(ROOT)): persons(prose(file.read_text())) for file in SOURCES}
    assert {name: each for name, each in found.items() if each} == {}

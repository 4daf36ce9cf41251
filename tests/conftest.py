"""Options of the whole test suite."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--rewrite-golden`: store what the code does now (`make golden`)."""
    parser.addoption("--rewrite-golden", action="store_true", help="rewrite tests/golden/*.jsonl")

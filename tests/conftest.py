"""Options of the whole test suite."""

from __future__ import annotations

import gc
import signal

import pytest
from hypothesis import HealthCheck, settings

# A shell starts background jobs with SIGINT ignored, `nohup` those with SIGHUP, and what they start inherits that;
# tests press Ctrl-C, and close terminals.
signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    # Still nothing to us, as was asked for; but what is caught, unlike what is ignored, programs do not inherit.
    signal.signal(signal.SIGHUP, lambda number, frame: None)

# Modules and tests make millions of objects that live to the end: looked through again and again, they cost more than a
# third of collection. `pytest_collection_finish` takes them from the collector's sight for good.
gc.disable()

# Machines are shared and slow at times: how long an example takes, or is drawn, is no property of the code.
_untimed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", _untimed, max_examples=20)
settings.register_profile("full", _untimed, max_examples=50)  # `make check`
settings.load_profile("quick")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--rewrite-golden`: store what the code does now (`make golden`)."""
    parser.addoption("--rewrite-golden", action="store_true", help="rewrite tests/golden/*.jsonl")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that start whole programs: the longest, so that none is left alone at the end."""
    starting = {item.path for item in items if item.get_closest_marker("engine")}
    items.sort(key=lambda item: item.path not in starting)


def pytest_collection_finish() -> None:
    """Look for garbage from here on, among what the tests themselves make."""
    gc.freeze()
    gc.enable()

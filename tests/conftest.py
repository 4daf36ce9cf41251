"""Options of the whole test suite."""

from __future__ import annotations

import signal

import pytest
from hypothesis import HealthCheck, settings

# A shell starts background jobs with SIGINT ignored, `nohup` those with SIGHUP, and what they start inherits that;
# tests press Ctrl-C, and close terminals.
signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    # Still nothing to us, as was asked for; but what is caught, unlike what is ignored, programs do not inherit.
    signal.signal(signal.SIGHUP, lambda number, frame: None)

# Machines are shared and slow at times: how long an example takes, or is drawn, is no property of the code.
_untimed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", _untimed, max_examples=20)
settings.register_profile("full", _untimed, max_examples=100)  # `make check`
settings.load_profile("quick")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--rewrite-golden`: store what the code does now (`make golden`)."""
    parser.addoption("--rewrite-golden", action="store_true", help="rewrite tests/golden/*.jsonl")

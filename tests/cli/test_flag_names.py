"""Errors name what the user typed."""

from __future__ import annotations

import pytest

from headway.cli.flag_names import by_flag


@pytest.mark.parametrize(
    ("message", "words", "said"),
    [
        ("ttft_s is -1.0; accepted: x", ["--slo-ttft", "-1"], "--slo-ttft is -1.0; accepted: x"),
        ("host_kv.gib is nan", ["--host-kv-gib=nan"], "--host-kv-gib is nan"),
        ("timeout_s is nan", ["--timeout", "nan"], "--timeout is nan"),
        ("drain_s is nan; accepted: x", ["--drain-seconds", "nan"], "--drain-seconds is nan; accepted: x"),
        ("threshold is nan", ["--hand-off-threshold=nan"], "--hand-off-threshold is nan"),
        ("threshold is nan", ["--leaving", "at-risk:threshold=nan"], "threshold is nan"),
        ("batch_width is 0", ["serve", "--batch-width", "0"], "--batch-width is 0"),
        ("line 3: ttft_s is -1.0", ["--slo-ttft", "1"], "line 3: ttft_s is -1.0"),
        ("ttft_s is -1.0", ["--trace", "t.csv"], "ttft_s is -1.0"),
        ("policy x is not y", ["--policy", "x"], "policy x is not y"),
        ("no such file", [], "no such file"),
    ],
)
def test_a_setting_is_called_by_its_flag_if_that_was_given(message: str, words: list[str], said: str) -> None:
    assert by_flag(message, words) == said

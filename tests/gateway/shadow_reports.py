"""Reports of a shadow, as its command prints them."""

from __future__ import annotations

import json

_FIGURES = {
    "live": {"goodput": 0.5, "mean_jct_s": 4.0, "finished": 40, "mean_ttft_s": 1.5, "p99_ttft_s": 9.0},
    "live policy, simulated": {
        "goodput": 0.55,
        "mean_jct_s": 3.9,
        "finished": 40,
        "mean_ttft_s": 1.4,
        "p99_ttft_s": 8.5,
    },
    "sarathi": {"goodput": 0.75, "mean_jct_s": 2.5, "finished": 41, "mean_ttft_s": 0.3, "p99_ttft_s": None},
}
_REPORT = {
    "at": 1_800_000_000.0,
    "window_s": 300.0,
    "requests": 44,
    "assumed": 2,
    "missed": 0,
    "step_error": 0.03,
    "failed": {"<i>broken</i>": "it has no figures"},
    "figures": _FIGURES,
}

REPORT = json.dumps(_REPORT).encode()
DOUBT = "goodput 3.0% live, 74.0% simulated (accepted: 10 points apart)"
_UNJUDGED = {policy: figures for policy, figures in _FIGURES.items() if policy != "sarathi"}
DOUBTED = json.dumps({**_REPORT, "figures": _UNJUDGED, "cannot_judge": DOUBT}).encode()
"""What it prints where the live policy simulated is far from what was seen."""

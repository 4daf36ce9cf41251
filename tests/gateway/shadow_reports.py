"""What a shadow reports, as its command prints it."""

from __future__ import annotations

import json

REPORT = json.dumps(
    {
        "at": 1_800_000_000.0,
        "window_s": 300.0,
        "requests": 44,
        "assumed": 2,
        "missed": 0,
        "step_error": 0.03,
        "failed": {"<i>broken</i>": "it has no figures"},
        "figures": {
            "live": {
                "goodput": 0.5,
                "mean_jct_s": 4.0,
                "finished": 40,
                "mean_ttft_s": 1.5,
                "p99_ttft_s": 9.0,
            },
            "live policy, simulated": {
                "goodput": 0.55,
                "mean_jct_s": 3.9,
                "finished": 40,
                "mean_ttft_s": 1.4,
                "p99_ttft_s": 8.5,
            },
            "sarathi": {
                "goodput": 0.75,
                "mean_jct_s": 2.5,
                "finished": 41,
                "mean_ttft_s": 0.3,
                "p99_ttft_s": None,
            },
        },
    }
).encode()

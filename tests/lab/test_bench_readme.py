from __future__ import annotations

import re
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench"
PROCESSES = {"bare_proxy", "sse_stub", "storm_gateway", "storm_upstream", "version_features"}
"""What benches start themselves."""


def test_every_command_is_listed_and_nothing_else() -> None:
    commands = {file.stem for file in BENCH.glob("*.py") if 'if __name__ == "__main__":' in file.read_text()}
    rows = [line for line in (BENCH / "README.md").read_text().splitlines() if line.startswith("| `")]
    assert {
        name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])
    } == commands - PROCESSES

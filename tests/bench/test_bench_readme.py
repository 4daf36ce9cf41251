from __future__ import annotations

import re
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench"
PROCESSES = {"sse_servers", "storm_health", "storm_hostile", "storm_servers", "version_features"}
"""What benches start themselves."""


def test_every_command_is_listed_under_its_folder_and_nothing_else() -> None:
    commands = {
        (file.parent.name, file.stem)
        for file in BENCH.rglob("*.py")
        if 'if __name__ == "__main__":' in file.read_text() and file.stem not in PROCESSES
    }
    listed, folder = set(), ""
    for line in (BENCH / "README.md").read_text().splitlines():
        if heading := re.match(r"\| \*\*.*\*\* `(\w+)/`", line):
            folder = heading[1]
        elif line.startswith("| `"):
            listed |= {(folder, name) for name in re.findall(r"`(\w+)`", line.split("|")[1])}
    assert listed == commands

"""The demo's stream at several loads, five policies each: `python bench/gain/load_sweep.py --out DIR`.

One fresh real engine per policy and load (15 runs, about 12 minutes on 2 cores). Writes a run folder per load,
which `headway report DIR` draws, and the README's picture: goodput against load. Load 1 is the stream as it
is; at load 0.5 the same requests arrive half as fast.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from headway.results import read_runs, summarize
from headway.results.plots import sweep_svg
from headway.results.run_folder import load_folder

LOADS = (0.5, 0.75, 1.0)
POLICIES = ("vllm", "sarathi", "sjf", "edf", "headway")
VLLM_FLAGS = ("--max-num-seqs", "16", "--max-num-batched-tokens", "1024")
PICTURES = {"goodput": "goodput.svg", "mean_ttft_s": "mean-ttft.svg", "p99_jct_s": "p99-jct.svg"}


def main() -> None:
    """Run what is missing in DIR, then draw; prints `{"<policy>": {"<load>": {summary}}}`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for runs and pictures; resumed if there"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout (the default output)")
    arguments = parser.parse_args()
    for load in LOADS:
        folder = load_folder(arguments.out, load)
        if not folder.exists():
            _run(load, folder)
    table: dict[str, dict[str, dict[str, float | None]]] = {policy: {} for policy in POLICIES}
    curves: dict[str, dict[str, list[tuple[float, float | None]]]] = {key: {} for key in PICTURES}
    for run in read_runs(arguments.out):
        assert run.meta.load is not None  # it is in the folder's name
        for policy, records in run.records.items():
            summary = summarize(records, run=run.infos[policy]).to_dict()
            table[policy][f"{run.meta.load:g}"] = summary
            for key, curve in curves.items():
                curve.setdefault(policy, []).append((run.meta.load, summary[key]))
    for key, name in PICTURES.items():
        (arguments.out / name).write_text(sweep_svg(curves[key], key))
    print(json.dumps(table))


def _run(load: float, folder: Path) -> None:
    command = [
        *("headway", "bench", "--model", "demo", "--trace", "demo", "--rate-scale", f"{load:g}"),
        *("--policies", ",".join(POLICIES), "--out", str(folder), "--", *VLLM_FLAGS),
    ]
    print(" ".join(command), file=sys.stderr)
    subprocess.run([sys.executable, "-m", "headway.cli", *command[1:]], check=True)


if __name__ == "__main__":
    main()

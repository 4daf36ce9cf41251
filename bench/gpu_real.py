"""What `headway` is worth on a GPU: `python bench/gpu_real.py --out DIR --json`.

A cell of `bench/regret.py` on the real thing: vLLM on this GPU with a model of the machine's shape and made weights,
answers of the workload's lengths, arrivals over `--seconds` at shares of capacity, which is what vLLM's own scheduler
gets through here when the first requests are all there at once. `stock` is vLLM's own scheduler with everything as vLLM
chooses it (chunked prefill, prefix caching, asynchronous scheduling, compiled, CUDA graphs), once with vLLM's seats and
once with each of `--seats`; each metric is compared with its best value of these. `headway` has vLLM's seats, and
lengths that it learns as it serves. Stock never sees targets, so its runs serve all classes. Targets are the cell's, by
the machine's cost sheet.

`steps` has what lone prompts, batches of decodes and prompts beside these take here and what the sheet says;
`beyond_sheet` what steps with prompts and those without take beyond it in stock's runs (`bench/gpu_answers.py`);
`cells` each system's figures, and beside them those of the simulator by the sheet, at the same streams; `gain` how
many times as good as stock. `schedule_ms` is the scheduler's own time a step. What is in DIR already is not run
again: without a GPU the report of a folder measured elsewhere can be made. One seed at two loads takes some eight
minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from shlex import split

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # vLLM logs to stdout, which is for data here
sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, only this folder is on the path

from bench.gpu_real_measured import measure
from bench.gpu_real_plan import Study
from bench.gpu_real_report import report
from bench.regret_machines import MACHINES
from bench.regret_targets import CLASSES, ONE
from bench.regret_workloads import DATA, Served, known_workloads
from headway.errors import ConfigError, HeadwayError
from headway.policies.presets import find_preset

LOADS = (1.2, 0.5)
SECONDS = 40.0


def options() -> argparse.ArgumentParser:
    """The command's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for what is measured; resumed if there"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout (the default output)")
    parser.add_argument("--machine", choices=tuple(MACHINES), default="h100-llama-8b")
    parser.add_argument(
        "--workload", default="chat", help="of bench/regret.py (default chat, which needs no file)"
    )
    parser.add_argument("--data", type=Path, default=DATA, help="the recorded traces")
    parser.add_argument("--policy", default="headway", help="a preset (default headway)")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help=f"of arrivals a run (default {SECONDS:g})"
    )
    parser.add_argument("--seeds", type=int, default=1, help="streams of each load (default 1)")
    parser.add_argument("--load", type=float, action="append", help=f"of capacity (default {LOADS})")
    parser.add_argument(
        "--class", dest="kind", choices=CLASSES, action="append", help=f"of targets (default {ONE})"
    )
    parser.add_argument("--seats", type=int, action="append", help="of stock, beside vLLM's own")
    parser.add_argument(
        "--vllm-flags", default="", help="one text of further flags, the same for all systems"
    )
    parser.add_argument("--measure-only", action="store_true", help="leave the report to another machine")
    return parser


def study_of(arguments: argparse.Namespace) -> Study:
    """What the options ask for. Raises ConfigError for what is not accepted."""
    find_preset(arguments.policy)
    known = known_workloads(arguments.data)
    if arguments.workload not in known:
        raise ConfigError(f"workload is {arguments.workload!r}; accepted: {', '.join(known)}")
    machine = MACHINES[arguments.machine]
    return Study(
        out=arguments.out,
        machine=machine,
        workload=Served(arguments.workload, machine, arguments.data),
        policy=arguments.policy,
        seconds=arguments.seconds,
        seeds=arguments.seeds,
        loads=arguments.load or LOADS,
        kinds=arguments.kind or (ONE,),
        seats=arguments.seats or (),
        vllm_flags=split(arguments.vllm_flags),
    )


def main() -> int:
    """Measure what is missing and print the report."""
    parser = options()
    arguments = parser.parse_args()
    try:
        study = study_of(arguments)
        measure(study)
        if not arguments.measure_only:
            print(json.dumps(report(study)))
    except HeadwayError as error:
        parser.exit(2, f"error: {error}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

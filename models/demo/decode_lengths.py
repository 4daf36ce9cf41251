"""Decodes the demo tasks with vLLM and writes how long the answers were: `python models/demo/decode_lengths.py`.

`--tasks` tasks of each application, from a seed that training never saw, greedily, with at most 1,024 tokens for an
answer, by vLLM's own scheduler. Writes `lengths.csv.gz` (application, number, tokens of the prompt and of the
answer, its end included), and into `training.json` what the same answers say of the model: the share that is
right, the share that ended by itself (the others were cut at the limit, and their length is the limit), how long
they were, and how their lengths go with those of the right answers (correlation, of all and of those that ended,
and Kendall's tau of all).

`--dry` writes nothing.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script, only this folder is on the path

from headway.core.prediction_quality import kendall_tau
from headway.engine.demo_model import EOS_ID
from headway.traces.demo_apps import APPS
from headway.traces.demo_tasks import LENGTHS_FILE, LENGTHS_HEADER, LENGTHS_SEED, DemoTask, demo_task
from models.demo.shipped_files import prompt_ids, put

HERE = Path(__file__).parent
TASKS = 1500
MAX_OUTPUT_TOKENS = 1024
OFTEN_CUT_SHARE = 0.03
"""An application with more answers than this cut at the limit is named in the record."""
ENVIRONMENT = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_PLUGINS": "",  # no plug-in, so that it is vLLM alone
}


@dataclass(frozen=True, slots=True)
class Decoded:
    """What the model made of a task. Token counts of answers include the one that ends them."""

    task: DemoTask
    number: int
    prompt_tokens: int
    output_tokens: int
    intended_tokens: int
    right: bool
    ended: bool


def main() -> int:
    """Decode, report, write. Returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=HERE)
    parser.add_argument("--tasks", type=int, default=TASKS, help="of each application")
    parser.add_argument("--dry", action="store_true", help="write nothing")
    options = parser.parse_args()
    os.environ.update(ENVIRONMENT)
    decoded = _decode(options.model, options.tasks)
    report = _report(decoded)
    print(json.dumps(report, indent=2))
    if not options.dry:
        put(options.model / LENGTHS_FILE, _lengths_file(decoded))
        training = options.model / "training.json"
        content = {**json.loads(training.read_text()), "held_out": report}
        put(training, (json.dumps(content, indent=2) + "\n").encode())
    return 0


def _decode(model: Path, tasks_per_app: int) -> list[Decoded]:
    from tokenizers import Tokenizer
    from vllm import LLM, SamplingParams

    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    numbered = [
        (number, demo_task(app, number, LENGTHS_SEED)) for app in APPS for number in range(tasks_per_app)
    ]
    prompts = [{"prompt_token_ids": prompt_ids(tokenizer, task)} for _, task in numbered]
    llm = LLM(model=str(model), max_num_seqs=256, max_num_batched_tokens=4096, enforce_eager=True, seed=0)
    outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=MAX_OUTPUT_TOKENS))
    return [
        _decoded(task, number, output, tokenizer)
        for (number, task), output in zip(numbered, outputs, strict=True)
    ]


def _decoded(task: DemoTask, number: int, output: Any, tokenizer: Any) -> Decoded:
    written = list(output.outputs[0].token_ids)
    intended = [*tokenizer.encode(task.answer, add_special_tokens=False).ids, EOS_ID]
    return Decoded(
        task,
        number,
        prompt_tokens=len(output.prompt_token_ids),
        output_tokens=len(written),
        intended_tokens=len(intended),
        right=written == intended,
        ended=written[-1] == EOS_ID,
    )


def _report(decoded: Sequence[Decoded]) -> dict[str, Any]:
    by_app = {app: _summary([one for one in decoded if one.task.app == app]) for app in APPS}
    return {
        "tasks": len(decoded),
        "often_cut_at_limit": [app for app, said in by_app.items() if said["ended"] < 1 - OFTEN_CUT_SHARE],
        "all": _summary(decoded),
        **by_app,
    }


def _summary(decoded: Sequence[Decoded]) -> dict[str, float]:
    import numpy as np

    real = np.array([one.output_tokens for one in decoded])
    intended = np.array([one.intended_tokens for one in decoded])
    prompts = np.array([one.prompt_tokens for one in decoded])
    ended = np.array([one.ended for one in decoded])
    return {
        "exact": round(float(np.mean([one.right for one in decoded])), 4),
        "ended": round(float(ended.mean()), 4),
        "mean_prompt_tokens": round(float(prompts.mean()), 1),
        "mean_output_tokens": round(float(real.mean()), 1),
        "median_output_tokens": float(np.median(real)),
        "p99_output_tokens": round(float(np.quantile(real, 0.99)), 1),
        "most_output_tokens": int(real.max()),
        "correlation_with_intended": round(float(np.corrcoef(real, intended)[0, 1]), 4),
        "correlation_of_ended": round(float(np.corrcoef(real[ended], intended[ended])[0, 1]), 4),
        "tau_with_intended": round(kendall_tau(zip(real.tolist(), intended.tolist(), strict=True)), 4),
        "correlation_with_prompt": round(float(np.corrcoef(real, prompts)[0, 1]), 4),
    }


def _lengths_file(decoded: Sequence[Decoded]) -> bytes:
    """The lengths as compressed CSV; the same lengths give the same bytes."""
    text = io.StringIO(newline="")
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(LENGTHS_HEADER)
    rows.writerows((one.task.app, one.number, one.prompt_tokens, one.output_tokens) for one in decoded)
    return gzip.compress(text.getvalue().encode("ascii"), mtime=0)


if __name__ == "__main__":
    sys.exit(main())

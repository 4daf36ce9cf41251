"""Trains the `demo` model on the CPU and writes it here: `python models/demo/train.py`.

3.7 million parameters in Llama's architecture, on the eight applications of `headway.traces.demo_tasks`, each
task used once. The tokenizer is made first, from the tasks and English prose. Loss on the answers alone: the
inputs are random, and there is nothing to learn in them. Batches hold tasks of about the same length, padded at
the end, where causal attention never looks; short tasks come first, as copying is learnt on them soonest.

Every `--save-every` steps the state is saved by rename (in `--state`); `--resume` goes on from there, and gives
what an uninterrupted run would have given. Equal threads and steps give equal weights on the same machine and
torch. At the end it writes the files that vLLM reads and `training.json`; `decode_lengths.py` then adds the
accuracy on other tasks.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script, only this folder is on the path

from transformers import LlamaConfig, LlamaForCausalLM

from headway.engine.demo_model import PAD_ID, configuration
from models.demo.first_weights import set_first_weights
from models.demo.shipped_files import RECIPE, make_tokenizer, write_model
from models.demo.training_plan import Pair, Training, batches, rate_share

HERE = Path(__file__).parent


@dataclass(slots=True)
class Run:
    """Where a training stands."""

    model: LlamaForCausalLM
    optimizers: list[torch.optim.Optimizer]
    step: int = 0
    tokens: int = 0
    answer_tokens: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """Of this process alone: what the training costs on a machine that does something else as well."""
    losses: list[float] = field(default_factory=list)


def main() -> int:
    """Train, examine, write. Returns the exit status."""
    options = _options()
    torch.set_num_threads(options.threads)
    training = Training(steps=options.steps, threads=options.threads)
    torch.manual_seed(training.seed)
    tokenizer = make_tokenizer()
    run = _new_run(training)
    if options.resume:
        _load(run, options.state)
    _train(run, training, tokenizer, options)
    summary = {
        "recipe": {
            **asdict(training),
            "architecture": architecture(),
            "optimizers": "Muon (matrices), AdamW",
        },
        "python": platform.python_version(),
        "torch": torch.__version__,
        "steps": run.step,
        "tokens": run.tokens,
        "answer_tokens": run.answer_tokens,
        "seconds": round(run.seconds, 1),
        "cpu_seconds": round(run.cpu_seconds, 1),
        "loss_last_100_steps": round(sum(run.losses[-100:]) / len(run.losses[-100:]), 4),
    }
    write_model(options.out, run.model, tokenizer, summary)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--state", type=Path, default=Path("out/demo-training.pt"))
    parser.add_argument("--save-every", type=int, default=50)
    parser.add_argument("--resume", action="store_true")
    return parser.parse_args()


def _new_run(training: Training) -> Run:
    model = LlamaForCausalLM(LlamaConfig(**architecture(), attn_implementation="sdpa"))
    set_first_weights(model)
    inner = [weight for name, weight in model.model.layers.named_parameters() if weight.ndim == 2]
    chosen = {id(weight) for weight in inner}
    others = [weight for weight in model.parameters() if id(weight) not in chosen]
    return Run(
        model,
        [
            torch.optim.Muon(inner, lr=training.muon_rate, weight_decay=0.01),
            torch.optim.AdamW(others, lr=training.adam_rate, betas=(0.9, 0.95), weight_decay=0.0),
        ],
    )


def architecture() -> dict[str, Any]:
    """What makes a LlamaConfig of the recipe's shape."""
    config = configuration(RECIPE)["config.json"]
    return {name: value for name, value in config.items() if name not in ("architectures", "torch_dtype")}


# ---- the loop ----------------------------------------------------------------------------------------


def _train(run: Run, training: Training, tokenizer: Any, options: argparse.Namespace) -> None:
    full_rates = (training.muon_rate, training.adam_rate)
    run.model.train()
    for batch in batches(run.step, training, tokenizer):
        start_s, cpu_start_s = time.monotonic(), time.process_time()
        for optimizer, full in zip(run.optimizers, full_rates, strict=True):
            optimizer.param_groups[0]["lr"] = full * rate_share(run.step, training)
        loss, answer_tokens = _learn(run, batch)
        run.step += 1
        run.tokens += sum(len(prompt) + len(answer) for prompt, answer in batch)
        run.answer_tokens += answer_tokens
        run.losses.append(loss)
        run.seconds += time.monotonic() - start_s
        run.cpu_seconds += time.process_time() - cpu_start_s
        if run.step % 20 == 0:
            recent = sum(run.losses[-20:]) / 20
            speed = run.tokens / run.seconds
            _say(f"step {run.step} loss {recent:.4f}, {run.seconds:.0f} s, {speed:.0f} tokens/s")
        if run.step % options.save_every == 0:
            _save(run, options.state)
        if run.step >= training.steps:
            return


def _learn(run: Run, batch: list[Pair]) -> tuple[float, int]:
    """One step; returns its loss for a token of an answer and how many such tokens there were."""
    width = max(len(prompt) + len(answer) for prompt, answer in batch)
    ids = torch.full((len(batch), width), PAD_ID)
    wanted = torch.full((len(batch), width), -1)
    for row, (prompt, answer) in enumerate(batch):
        ids[row, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
        wanted[row, len(prompt) - 1 : len(prompt) + len(answer) - 1] = torch.tensor(answer)
    asked = wanted >= 0
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden: Tensor = run.model.model(ids).last_hidden_state[asked]
        loss = functional.cross_entropy(run.model.lm_head(hidden), wanted[asked])
    loss.backward()
    torch.nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
    for optimizer in run.optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return loss.item(), int(asked.sum())


# ---- saved and gone on with --------------------------------------------------------------------------


_COUNTED = ("step", "tokens", "answer_tokens", "seconds", "cpu_seconds", "losses")


def _save(run: Run, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    state = {name: getattr(run, name) for name in _COUNTED}
    state["model"] = run.model.state_dict()
    state["optimizers"] = [optimizer.state_dict() for optimizer in run.optimizers]
    torch.save(state, unfinished)
    unfinished.rename(path)


def _load(run: Run, path: Path) -> None:
    state = torch.load(path, weights_only=True)
    run.model.load_state_dict(state.pop("model"))
    for optimizer, saved in zip(run.optimizers, state.pop("optimizers"), strict=True):
        optimizer.load_state_dict(saved)
    for name, value in state.items():
        setattr(run, name, value)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

"""The files of the trained demo model: its tokenizer and architecture, and how they are written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from headway.engine.demo_model import (
    DemoRecipe,
    bfloat16_safetensors,
    configuration,
    english_prose,
    train_tokenizer,
)
from headway.traces.demo_apps import APPS
from headway.traces.demo_tasks import DemoTask, demo_task, prompt_text

RECIPE = DemoRecipe()
TOKENIZER_SEED = 0
TOKENIZER_TASKS = 1000
"""Tasks of each application in the tokenizer's training text: enough for each of their words to be a token."""


def make_tokenizer() -> Tokenizer:
    """The tokenizer, made of the tasks' own text and of English prose, always the same."""
    return Tokenizer.from_str(train_tokenizer(RECIPE.vocab_size, _tokenizer_text()))


def _tokenizer_text() -> Iterator[str]:
    yield from english_prose()
    for app in APPS:
        for number in range(TOKENIZER_TASKS):
            task = demo_task(app, number, TOKENIZER_SEED)
            yield from (task.instruction, task.input, task.answer)


def prompt_ids(tokenizer: Tokenizer, task: DemoTask) -> list[int]:
    """A task's prompt as the server reads it, the first token included."""
    ids: list[int] = tokenizer.encode(prompt_text(task.instruction, task.input)).ids
    return ids


def write_model(
    directory: Path, model: LlamaForCausalLM, tokenizer: Tokenizer, summary: Mapping[str, object]
) -> None:
    """Everything that vLLM reads, each file put in place by rename, and the summary as `training.json`."""
    weights = {
        name: weight.detach().float().contiguous().numpy() for name, weight in model.state_dict().items()
    }
    put(directory / "model.safetensors", bfloat16_safetensors(weights))
    put(directory / "tokenizer.json", tokenizer.to_str(pretty=True).encode())
    for name, content in {**configuration(RECIPE), "training.json": summary}.items():
        put(directory / name, (json.dumps(content, indent=2) + "\n").encode())


def put(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.write_bytes(content)
    unfinished.rename(path)

"""The script that trained `demo`: where it starts, what it learns from, and that it can be interrupted."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

TRAIN = Path(__file__).parents[2] / "models" / "demo" / "train.py"
RECORD = json.loads((TRAIN.parent / "training.json").read_text())
TEXT = "<|user|>Paul loves red hats. Anna breaks old lamps near bells.<|eos|><|assistant|>Paul loves red hats. Anna"

pytestmark = pytest.mark.engine  # torch and transformers take seconds to import


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from models.demo.shipped_files import make_tokenizer

    return make_tokenizer()


def test_the_shipped_tokenizer_is_what_the_script_makes(tokenizer: Any) -> None:
    if platform.python_version() != RECORD["python"]:
        pytest.skip("the English prose in the tokenizer's training text is Python's own and changes with it")
    assert tokenizer.to_str(pretty=True) == (TRAIN.parent / "tokenizer.json").read_text()


def test_the_shipped_recipe_is_the_scripts() -> None:
    from models.demo.train import architecture
    from models.demo.training_plan import Training

    recipe = dict(RECORD["recipe"])
    assert recipe.pop("architecture") == architecture()
    assert recipe.pop("optimizers")
    assert recipe == asdict(Training(steps=recipe["steps"], threads=recipe["threads"]))


def test_the_first_weights_look_back_and_find_the_word_again(tokenizer: Any) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from models.demo.first_weights import BACKWARD_TOKENS, set_first_weights
    from models.demo.train import architecture

    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**architecture(), attn_implementation="eager"))
    set_first_weights(model)
    encoded = tokenizer.encode(TEXT)
    with torch.no_grad():
        first, second, *_ = model(torch.tensor([encoded.ids]), output_attentions=True).attentions
    length = len(encoded.ids)
    for head, back in enumerate(BACKWARD_TOKENS):
        looked = [first[0, head, place, place - back].item() for place in range(4, length)]
        assert sum(looked) / len(looked) > 0.5
    # At the second `Paul loves red hats` the heads of layer two see, on average, the word that came next there.
    answer = encoded.tokens.index("<|assistant|>") + 1
    text = encoded.tokens.index("<|user|>") + 1
    weight = [
        second[0, head, answer + offset, text + offset + 1].item()
        for head in range(2)
        for offset in range(1, 4)
    ]
    assert sum(weight) / len(weight) > 5 / length  # five times an even gaze


def test_batches_are_of_short_tasks_first_and_never_too_large(tokenizer: Any) -> None:
    from models.demo.training_plan import Training, batches

    training = Training(steps=100, threads=1)
    for step, batch in enumerate(islice(batches(0, training, tokenizer), 10)):
        lengths = [len(prompt) + len(answer) for prompt, answer in batch]
        assert max(lengths) <= training.short_tokens * (1 + 10 * step / training.short_steps)
        assert max(lengths) * len(lengths) <= training.batch_tokens
        assert max(lengths) < 2 * min(lengths)
    late = list(islice(batches(training.short_steps + 40, training, tokenizer), 20))
    assert max(len(prompt) + len(answer) for batch in late for prompt, answer in batch) > 150
    # A batch belongs to its step, so that a training that goes on sees what it would have seen.
    from_start = list(islice(batches(0, training, tokenizer), 12))
    assert list(islice(batches(9, training, tokenizer), 3)) == from_start[9:]


def test_the_rate_rises_stays_and_falls_to_nothing() -> None:
    from models.demo.training_plan import Training, rate_share

    # 40 steps up, and from step 60 (100 less 40 %) down; the last step still learns a fortieth.
    training = Training(steps=100, threads=1, warm_up_steps=40, falling_share=0.4)
    assert [rate_share(step, training) for step in (0, 19, 39, 60, 80, 99)] == [
        1 / 40, 20 / 40, 1.0, 1.0, 0.5, 1 / 40,
    ]  # fmt: skip


@pytest.mark.long
def test_an_interrupted_training_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    """Six steps at once against four steps, a new process, and two more."""
    state = ["--state", str(tmp_path / "state.pt"), "--save-every", "4", "--steps", "6"]
    for out, resumed in ((tmp_path / "whole", []), (tmp_path / "resumed", ["--resume"])):
        words = [sys.executable, str(TRAIN), "--out", str(out), *state, *resumed]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
    whole, resumed_model = (tmp_path / name / "model.safetensors" for name in ("whole", "resumed"))
    assert whole.read_bytes() == resumed_model.read_bytes()
    assert sorted(path.name for path in (tmp_path / "whole").iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "training.json",
    ]

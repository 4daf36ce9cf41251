"""The trained `demo` model, as shipped: its files, its tokenizer, and that it answers and stops by itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.engine.demo_model import BOS_ID, CHAT_TEMPLATE, EOS_ID, SPECIAL_TOKENS, DemoRecipe, configuration
from headway.traces.demo_apps import APPS, KALA, NAMES, NOUNS, PLAINER, RUDE
from headway.traces.demo_tasks import demo_directory, demo_rows, demo_task, prompt_text

MODEL = demo_directory()
DECODE = Path(__file__).parents[2] / "models" / "demo" / "decode_lengths.py"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(MODEL / "tokenizer.json"))


def test_its_shape_is_the_random_models_so_its_steps_take_as_long() -> None:
    for name, content in configuration(DemoRecipe()).items():
        assert json.loads((MODEL / name).read_text()) == content, name


def test_its_weights_fit_and_are_small() -> None:
    from safetensors import safe_open

    recipe = DemoRecipe()
    with safe_open(MODEL / "model.safetensors", framework="np") as weights:
        shapes = {name: tuple(weights.get_slice(name).get_shape()) for name in weights.keys()}  # noqa: SIM118
        types = {weights.get_slice(name).get_dtype() for name in weights.keys()}  # noqa: SIM118
    assert shapes["lm_head.weight"] == (recipe.vocab_size, recipe.hidden_size)
    assert len(shapes) == 3 + 9 * recipe.num_hidden_layers
    assert types == {"BF16"}
    assert (MODEL / "model.safetensors").stat().st_size < 8_000_000


@given(text=st.text())
def test_any_text_survives_the_tokenizer(tokenizer: Any, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_every_word_of_the_tasks_is_one_token(tokenizer: Any) -> None:
    words = (*NOUNS, *NAMES, *PLAINER, *RUDE, *" ".join(KALA.values()).split())
    assert [
        word for word in words if len(tokenizer.encode(f" {word}", add_special_tokens=False).ids) > 1
    ] == []


def test_its_tokenizer_has_the_same_special_tokens(tokenizer: Any) -> None:
    assert [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS] == list(range(len(SPECIAL_TOKENS)))
    assert tokenizer.get_vocab_size() == DemoRecipe().vocab_size
    text = "The function returns a list of strings."
    assert len(tokenizer.encode(text).ids) < len(text) / 2  # English prose is known, too


def test_the_training_is_on_record() -> None:
    record = json.loads((MODEL / "training.json").read_text())
    assert record["steps"] == record["recipe"]["steps"]
    assert "provisional" not in record
    held_out = record["held_out"]
    assert held_out["tasks"] == len(demo_rows())
    assert set(APPS) < set(held_out)
    for app in APPS:
        own = [row for row in demo_rows() if row.app == app]
        told = held_out[app]
        assert told["mean_output_tokens"] == pytest.approx(
            sum(row.output_tokens for row in own) / len(own), abs=0.06
        )
        assert told["most_output_tokens"] == max(row.output_tokens for row in own)
    # What the model is for: it stops by itself, when it should.
    cut = {app: sum(row.output_tokens == 1024 for row in demo_rows() if row.app == app) for app in APPS}
    each = len(demo_rows()) // len(APPS)
    assert held_out["often_cut_at_limit"] == [app for app in APPS if cut[app] > 0.03 * each]
    assert held_out["all"]["ended"] == pytest.approx(1 - sum(cut.values()) / len(demo_rows()), abs=1e-4)
    assert held_out["all"]["ended"] > 0.97
    assert held_out["all"]["correlation_of_ended"] > 0.7  # some go round for a while, and then end
    assert held_out["all"]["tau_with_intended"] > 0.95


def test_a_chat_and_its_text_are_the_same_prompt(tokenizer: Any) -> None:
    from jinja2 import Template

    task = demo_task("detox", 5, 0)
    messages = [{"role": "system", "content": task.instruction}, {"role": "user", "content": task.input}]
    chat = Template(CHAT_TEMPLATE).render(messages=messages, add_generation_prompt=True)
    text = prompt_text(task.instruction, task.input)
    assert tokenizer.encode(chat, add_special_tokens=False).ids == tokenizer.encode(text).ids
    assert tokenizer.encode(text).ids[0] == BOS_ID


@pytest.mark.engine
@pytest.mark.long
def test_vllm_decodes_it_to_ends_of_its_own_where_they_should_be(tmp_path: Path) -> None:
    """16 tasks under the real engine, greedily, by the script that made the packaged lengths."""
    words = [str(DECODE), "--model", str(MODEL), "--tasks", "2", "--dry"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout)
    assert report["tasks"] == 16
    assert report["all"]["ended"] == 1.0
    assert report["all"]["most_output_tokens"] < 1024
    assert report["all"]["tau_with_intended"] > 0.9
    assert report["all"]["exact"] > 0.5


@pytest.mark.engine
def test_transformers_answers_a_chat_with_it() -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer, llama = AutoTokenizer.from_pretrained(MODEL), AutoModelForCausalLM.from_pretrained(MODEL)
    task = demo_task("list", 1, 0)
    messages = [
        {"role": "system", "content": task.instruction},
        {"role": "user", "content": "2 lines:\n1 red lamps\n2 keys"},
    ]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt")
    ids = prompt["input_ids"] if hasattr(prompt, "keys") else prompt
    with torch.no_grad():
        answer = llama.generate(ids, do_sample=False, max_new_tokens=60)[0, ids.shape[1] :]
    assert answer[-1] == EOS_ID
    assert tokenizer.decode(answer, skip_special_tokens=True) == (
        "1 find the red lamps and bring them back to us\n2 find the keys and bring them back to us"
    )

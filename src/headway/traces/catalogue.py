"""Named length laws of published workloads."""

from __future__ import annotations

from typing import NamedTuple

from headway.traces.lengths import LengthLaw, LogNormal, Quantiles


class LengthPair(NamedTuple):
    """The lengths of a workload's prompts and of its answers, drawn independently of each other."""

    input: LengthLaw
    output: LengthLaw


PROBABILITIES = (0, 0.01, *(step / 20 for step in range(1, 20)), 0.975, 0.99, 0.995, 0.999, 1)
"""Where the tables below are given: every 5 %, and closer in the tails."""


def _quantiles(*tokens: int) -> Quantiles:
    return Quantiles(tuple(zip(PROBABILITIES, tokens, strict=True)))


# Each table's comment says what was counted, its true mean, and how far the table is from it: in the mean,
# and at most in the share of lengths up to any given one (Kolmogorov-Smirnov distance).

# First turns of 8,000 ShareGPT conversations, Llama-2 tokens, as in Vidur's length set (MIT; counts only).
_SHAREGPT_INPUT = _quantiles(  # mean 247.1; +1.5 %, 0.007
    1, 2, 6, 9, 11, 13, 15, 18, 21, 24, 29, 35, 44, 55, 73, 101, 143, 230, 395, 768, 1432, 2132, 2880,
    3293, 3742, 3973
)  # fmt: skip
_SHAREGPT_OUTPUT = _quantiles(  # mean 326.4; +0.3 %, 0.011
    3, 10, 23, 44, 77, 107, 138, 168, 202, 232, 260, 287, 314, 340, 370, 404, 447, 503, 573, 684, 844,
    937, 1000, 1042, 1125, 1346
)  # fmt: skip

# 24,584 turns of ShareGPT conversations, each a prompt with all that was said before it, of up to 8,192 Llama-2 tokens
# with its answer (project-etalon, counts only).
_SHAREGPT_TURNS_INPUT = _quantiles(  # mean 2344.4; +0.2 %, 0.008
    1, 12, 29, 74, 183, 386, 585, 781, 976, 1204, 1456, 1733, 2060, 2404, 2801, 3240, 3738, 4291,
    4938, 5706, 6573, 7074, 7435, 7628, 7884, 8141
)  # fmt: skip
_SHAREGPT_TURNS_OUTPUT = _quantiles(  # mean 436.4; +0.1 %, 0.004
    2, 8, 44, 83, 129, 179, 227, 269, 309, 343, 377, 411, 448, 488, 530, 577, 625, 681, 752, 831, 919,
    966, 998, 1011, 1021, 1024
)  # fmt: skip

# 22,605 arXiv papers with their abstracts, 4,096 Llama-2 tokens together at most, as in Vidur's length set (MIT).
# Drawn independently of each other, as here, both together can be more.
_ARXIV_INPUT = _quantiles(  # mean 2580.9; -0.1 %, 0.004
    1, 73, 736, 1226, 1555, 1795, 1979, 2144, 2303, 2447, 2589, 2720, 2850, 2985, 3115, 3241, 3365,
    3484, 3591, 3701, 3813, 3877, 3935, 3963, 4015, 4054
)  # fmt: skip
_ARXIV_OUTPUT = _quantiles(  # mean 294.8; +1.6 %, 0.019
    5, 36, 60, 78, 92, 104, 115, 125, 135, 145, 156, 167, 179, 192, 206, 222, 242, 269, 305, 374, 758,
    2568, 3297, 3603, 3872, 4056
)  # fmt: skip

# First 75 % (15,460 requests) of the Azure LLM inference trace 2023, conversation (CC BY 4.0).
# Source: Patel et al. 2024 (Splitwise), ISCA 2024.
_AZURE_INPUT = _quantiles(  # mean 1180.4; +1.1 %, 0.046
    2, 30, 181, 212, 374, 386, 395, 402, 410, 436, 964, 1014, 1042, 1068, 1096, 1133, 1203, 1321, 2066,
    3837, 4085, 4093, 4127, 4179, 5936, 14050
)  # fmt: skip
_AZURE_OUTPUT = _quantiles(  # mean 201.2; +1.1 %, 0.021
    7, 16, 40, 51, 62, 73, 81, 87, 92, 98, 104, 115, 134, 159, 192, 375, 393, 397, 410, 421, 448, 520,
    599, 643, 939, 1000
)  # fmt: skip

# Answers of ChatGPT to 3,600 user queries in HaluEval (MIT), one token a word or punctuation mark.
_CHAT_OUTPUT = _quantiles(  # mean 101.8; +0.2 %, 0.005
    21, 26, 33, 41, 49, 57, 64, 73, 80, 87, 94, 100, 107, 113, 119, 126, 133, 141, 150, 161, 176, 197,
    234, 254, 306, 417
)  # fmt: skip

# 793 summaries of meeting passages in QMSum (MIT), one token a word or punctuation mark.
_SUMMARY_OUTPUT = _quantiles(  # mean 70.6; +0.1 %, 0.013
    15, 21, 31, 36, 39, 44, 47, 51, 55, 59, 62, 67, 71, 75, 79, 84, 88, 95, 102, 108, 125, 145, 163, 169,
    190, 190
)  # fmt: skip

ADAPTIVELLM_MAX_INPUT_TOKENS = 1024

# The spread of the inputs is chosen, not published: it puts the 99th percentile at 4.5 times the median for
# chat prompts (4.7 in HaluEval) and at 3.2 times for texts to summarise (3.0 in dialogues of DialogSum).
_CHAT_SIGMA = 0.65
_SUMMARY_SIGMA = 0.5


def _adaptivellm_input(mean: float, sigma: float) -> LogNormal:
    return LogNormal.fitted(mean, sigma, ADAPTIVELLM_MAX_INPUT_TOKENS)


NAMED_LAWS: dict[str, LengthPair] = {
    "sharegpt": LengthPair(_SHAREGPT_INPUT, _SHAREGPT_OUTPUT),
    "sharegpt-turns": LengthPair(_SHAREGPT_TURNS_INPUT, _SHAREGPT_TURNS_OUTPUT),
    "arxiv-summarization": LengthPair(_ARXIV_INPUT, _ARXIV_OUTPUT),
    "azure-conversation": LengthPair(_AZURE_INPUT, _AZURE_OUTPUT),
    "sharegpt-1024": LengthPair(_SHAREGPT_INPUT.up_to(1024), _SHAREGPT_OUTPUT),
    "adaptivellm-chatbot": LengthPair(_adaptivellm_input(17.02, _CHAT_SIGMA), _CHAT_OUTPUT),
    "adaptivellm-alpaca": LengthPair(_adaptivellm_input(19.66, _CHAT_SIGMA), _CHAT_OUTPUT),
    "adaptivellm-summary": LengthPair(_adaptivellm_input(340.48, _SUMMARY_SIGMA), _SUMMARY_OUTPUT),
}
"""Laws by name. `sharegpt` (first turns), `sharegpt-turns` (any turn, with its history), `arxiv-summarization` and
`azure-conversation` are quantile tables of the data they are named after; `sharegpt-1024` is of prompts of 1,024
tokens or fewer, as FastServe's released code takes the same data.

The inputs of AdaptiveLLM's three data sets are log-normal on 1..1024 with the published means 17.02, 19.66
and 340.48, met within `lengths.FIT_TOLERANCE`; their outputs are chat answers and meeting summaries.
"""

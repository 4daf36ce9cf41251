"""How well answer lengths are predicted, and at what cost: `python bench/cost/length.py --json`.

Each set is split so that no prompt is on both sides: by a hash of the prompt, three quarters teach and one judges;
recordings of token counts by time. Every way is taught by the same rows: the mean, the mean of each application, a
line and a forest over the input's length, and Magnus's features with each encoder, under the default forest
(quantiles, boosted) and under the paper's (`, rf`). `learned` has no text; on recordings it starts from nothing and
learns as answers end. `all_tasks` is one predictor for all of the paper's applications. `coverage` aims at 0.8.
Chats are the hard case: hardly anything in a prompt says how long a free answer will be, and this bench says so.

Answers are counted without a tokenizer (a token for each word, CJK character or punctuation mark) except in
`lengths/`, by Llama-2's, and alpaca_eval, in words. Without the shared data, the demo model's own tasks are used, with
the lengths that it decoded. Times are medians of single requests on one core.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script, only this folder is on the path

import numpy as np
import numpy.typing as npt

from bench.cost.length_data import SHARED, Answered, DataSet, load_sets, published_classes, repeated
from headway.core.length_estimate import LengthEstimate
from headway.core.prediction_quality import kendall_tau
from headway.predict.encoders import text_encoder
from headway.predict.forest_predictor import ForestPredictor, LengthFeatures
from headway.predict.history_features import HistoryFeatures
from headway.predict.length import RequestFacts
from headway.predict.length_forest import Rows
from headway.predict.length_settings import LengthSettings
from headway.predict.magnus_features import MagnusFeatures, user_input_tokens

# ---- How good predicted lengths are, and what they cost


Tokens = npt.NDArray[np.float64]
_TIMED = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Errors in tokens; Kendall's tau; share of answers within their interval, None for a way without one; times."""

    mae: float
    rmse: float
    tau: float
    coverage: float | None = None
    encode_us: float | None = None
    predict_us: float | None = None


@dataclass(frozen=True, slots=True)
class Costs:
    """Median microseconds of one request: its features, and what the forest then takes."""

    encode_us: float
    predict_us: float


def figures(estimates: Sequence[LengthEstimate], tokens: Tokens, costs: Costs | None = None) -> Figures:
    """The figures of predictions with an interval."""
    held = [
        each.low_tokens <= actual <= each.high_tokens for each, actual in zip(estimates, tokens, strict=True)
    ]
    plain = plain_figures(np.array([each.tokens for each in estimates]), tokens)
    return Figures(
        mae=plain.mae,
        rmse=plain.rmse,
        tau=plain.tau,
        coverage=float(np.mean(held)),
        encode_us=None if costs is None else costs.encode_us,
        predict_us=None if costs is None else costs.predict_us,
    )


def plain_figures(predicted: Tokens, tokens: Tokens) -> Figures:
    """The figures of predictions that are one number each."""
    errors = predicted - tokens
    return Figures(
        mae=float(np.abs(errors).mean()),
        rmse=float(np.sqrt((errors**2).mean())),
        tau=kendall_tau(zip(predicted.tolist(), tokens.tolist(), strict=True)),
    )


def median_us(call: Callable[[int], object], count: int) -> float:
    """Median microseconds of `call(index)` over the first indices, one at a time."""
    taken_s = []
    for index in range(min(count, _TIMED)):
        started_s = time.perf_counter()
        call(index)
        taken_s.append(time.perf_counter() - started_s)
    return 1e6 * median(taken_s)


# ---- Ways of predicting a length, from the mean to a forest over embeddings, each taught and judged alike


MEAN, APP_MEAN, LINEAR, INPUT_FOREST, HISTORY = (
    "mean",
    "mean of the application",
    "input length, linear",
    "input length, forest",
    "learned",
)
BASELINES = (MEAN, APP_MEAN, LINEAR, INPUT_FOREST)
_PAPER = LengthSettings(forest="rf")


def judged(data: DataSet, encoded: Sequence[Remembering]) -> dict[str, Figures]:
    """The figures of every way that the set allows."""
    tokens = _tokens(data.test)
    found = {name: plain_figures(way(data), tokens) for name, way in _SIMPLE.items()}
    found[INPUT_FOREST] = _taught(data, _InputLength())
    found[HISTORY] = _taught(data, HistoryFeatures()) if data.has_text else _online(data)
    if not data.has_text:
        return found
    for features in encoded:
        features.encode(data)
        for name, settings in ((features.encoder, None), (f"{features.encoder}, rf", _PAPER)):
            found[name] = _taught(data, features, settings=settings, timed=features.computed)
    return found


class Remembering:
    """Magnus's features, computed once a request: sets overlap, and each is learned by two forests."""

    def __init__(self, encoder: str) -> None:
        self.encoder = encoder
        self.computed = MagnusFeatures(text_encoder(encoder))
        self.name, self.num_features = self.computed.name, self.computed.num_features
        self._known: dict[RequestFacts, Rows] = {}

    def encode(self, data: DataSet) -> None:
        """Compute what is not known yet of a set, all together."""
        requests = [row.facts for row in (*data.train, *data.test) if row.facts not in self._known]
        self._known.update(zip(requests, self.computed.rows(requests), strict=True))

    def rows(self, requests: Sequence[RequestFacts]) -> Rows:
        """(requests, features) of requests that were encoded."""
        return np.array([self._known[facts] for facts in requests], dtype=np.float32)

    def ended(self, facts: RequestFacts, output_tokens: int) -> None:
        """Texts say the same whatever has ended."""


def _tokens(rows: Sequence[Answered]) -> Tokens:
    return np.array([row.output_tokens for row in rows], dtype=np.float64)


def _inputs(rows: Sequence[Answered]) -> Tokens:
    return np.array([user_input_tokens(row.facts) for row in rows])


def _mean(data: DataSet) -> Tokens:
    return np.full(len(data.test), _tokens(data.train).mean())


def _app_mean(data: DataSet) -> Tokens:
    by_app: dict[str, list[int]] = {}
    for row in data.train:
        by_app.setdefault(row.facts.tenant, []).append(row.output_tokens)
    overall = _tokens(data.train).mean()
    return np.array([np.mean(by_app.get(row.facts.tenant, overall)) for row in data.test])


def _linear(data: DataSet) -> Tokens:
    slope, start = np.polyfit(_inputs(data.train), _tokens(data.train), 1)
    fitted: Tokens = np.maximum(1.0, start + slope * _inputs(data.test))
    return fitted


_SIMPLE: dict[str, Callable[[DataSet], Tokens]] = {MEAN: _mean, APP_MEAN: _app_mean, LINEAR: _linear}


class _InputLength:
    """The length of the user's input alone."""

    name = "input length"
    num_features = 1

    def rows(self, requests: Sequence[RequestFacts]) -> Rows:
        """(requests, 1)."""
        return np.array([[user_input_tokens(facts)] for facts in requests], dtype=np.float32).reshape(-1, 1)

    def ended(self, facts: RequestFacts, output_tokens: int) -> None:
        """The length says the same whatever has ended."""


def _taught(
    data: DataSet,
    features: LengthFeatures,
    *,
    settings: LengthSettings | None = None,
    timed: LengthFeatures | None = None,
) -> Figures:
    """A forest taught by one side of the set and judged by the other; `timed` is timed in the features' place."""
    predictor = ForestPredictor(features, settings)
    predictor.learn_from((row.facts, row.output_tokens) for row in data.train)
    requests = [row.facts for row in data.test]
    estimates = [estimate for estimate in predictor.predict_many(requests) if estimate is not None]
    return figures(estimates, _tokens(data.test), _costs(predictor, timed or features, requests))


def _costs(predictor: ForestPredictor, timed: LengthFeatures, requests: Sequence[RequestFacts]) -> Costs:
    """What one request takes by itself; the predictor's own features are looked up, which takes next to nothing."""
    timed.rows(requests[:1])
    encode_us = median_us(lambda index: timed.rows(requests[index : index + 1]), len(requests))
    own_us = median_us(lambda index: predictor.features.rows(requests[index : index + 1]), len(requests))
    whole_us = median_us(lambda index: predictor.predict(requests[index]), len(requests))
    return Costs(encode_us, max(0.0, whole_us - own_us))


def _online(data: DataSet) -> Figures:
    """Learned from nothing, an answer at a time in recorded order, by the paper's rule; judged where the rest is."""
    predictor = ForestPredictor(HistoryFeatures(), inline=True)
    estimates: list[LengthEstimate] = []
    tokens: list[int] = []
    for index, row in enumerate((*data.train, *data.test)):
        estimate = predictor.predict(row.facts)
        if index >= len(data.train) and estimate is not None:
            estimates.append(estimate)
            tokens.append(row.output_tokens)
        predictor.observe(row.facts, row.output_tokens)
    costs = _costs(predictor, predictor.features, [row.facts for row in data.test])
    return figures(estimates, np.array(tokens, dtype=np.float64), costs)


# ---- The bench


ROWS = 3000
LEAST_ROWS = 100
"""With fewer, what learns from nothing has hardly begun where it is judged."""
ENCODERS = "hash,minilm"
_COLUMNS = (("mae", 1), ("rmse", 1), ("tau", 3), ("coverage", 3), ("encode_us", 0), ("predict_us", 0))


def main() -> None:
    """Print `{"data", "rows_a_set", "sets": [{"name", "ways": {...}}], "no_better_than_the_mean", "references"}`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, in place of a table")
    parser.add_argument(
        "--data", type=Path, help="folder with text/ and lengths/; default: the shared data, else demo tasks"
    )
    parser.add_argument("--rows", type=int, default=ROWS, help=f"at most so many of each set ({ROWS})")
    parser.add_argument(
        "--encoders", default=ENCODERS, help=f"{ENCODERS}, st:<directory or hub id>; commas between"
    )
    arguments = parser.parse_args()
    if arguments.rows < LEAST_ROWS:
        parser.error(f"--rows is {arguments.rows}; accepted: {LEAST_ROWS} or more")
    data = arguments.data or (SHARED if SHARED.is_dir() else None)
    encoded = [Remembering(encoder) for encoder in arguments.encoders.split(",")]
    on_one_core()
    found = measured(load_sets(data, arguments.rows), encoded)
    found = {
        "data": "demo-tasks" if data is None else "shared",
        "rows_a_set": arguments.rows,
        **found,
        "references": {} if data is None else references(data),
    }
    print(json.dumps(found) if arguments.json else table(found))


def on_one_core() -> None:
    """Keep sentence-transformers' library to one thread, as figures are of one core."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


def measured(sets: Sequence[DataSet], encoded: Sequence[Remembering]) -> dict[str, Any]:
    """Every way on every set, and where a way with a forest is no better than the mean of the application."""
    rows = []
    for data in sets:
        print(f"{data.name}: {len(data.train)} teach, {len(data.test)} judge", file=sys.stderr)
        ways = judged(data, encoded)
        rows.append(
            {
                "name": data.name,
                "kind": data.kind,
                "train_rows": len(data.train),
                "test_rows": len(data.test),
                "mean_tokens": round(float(np.mean([row.output_tokens for row in data.test])), 1),
                "ways": {name: rounded(figures) for name, figures in ways.items()},
            }
        )
    return {"sets": rows, "no_better_than_the_mean": no_better(rows)}


def rounded(figures: Figures) -> dict[str, float | None]:
    """As many digits as mean something."""
    values = asdict(figures)
    return {
        name: None if values[name] is None else round(values[name], digits + 1) for name, digits in _COLUMNS
    }


def no_better(rows: Sequence[dict[str, Any]]) -> dict[str, list[str]]:
    """Way -> sets on which its mean absolute error is not below that of the application's mean."""
    found: dict[str, list[str]] = {}
    for row in rows:
        limit = row["ways"][APP_MEAN]["mae"]
        for name, figures in row["ways"].items():
            if name not in BASELINES and figures["mae"] >= limit:
                found.setdefault(name, []).append(row["name"])
    return found


def references(data: Path) -> dict[str, dict[str, float]]:
    """What others reach: another answer to the same prompt, and a published predictor's classes (tau alone)."""
    one, other = np.array(repeated(data), dtype=np.float64).T
    again = plain_figures(one, other)
    classes, tokens = np.array(published_classes(data), dtype=np.float64).T
    return {
        "another answer of the same model to the same prompt": {
            "mae": round(again.mae, 1),
            "mean_tokens": round(float(other.mean()), 1),
            "tau": round(again.tau, 3),
        },
        "a published BERT predictor, 5 classes": {"tau": round(plain_figures(classes, tokens).tau, 3)},
    }


def table(found: dict[str, Any]) -> str:
    """One block a set, one line a way."""
    lines = []
    for row in found["sets"]:
        lines.append(
            f"{row['name']} ({row['kind']}): {row['train_rows']} teach, {row['test_rows']} judge, "
            f"answers of {row['mean_tokens']} tokens"
        )
        lines.append(f"  {'':28}" + "".join(f"{name:>11}" for name, _ in _COLUMNS))
        for name, figures in row["ways"].items():
            cells = (
                "–" if figures[column] is None else f"{figures[column]:.{digits}f}"
                for column, digits in _COLUMNS
            )
            lines.append(f"  {name:28}" + "".join(f"{cell:>11}" for cell in cells))
    for name, sets in found["no_better_than_the_mean"].items():
        lines.append(f"{name}: no better than the mean of the application on {', '.join(sets)}")
    for name, figures in found["references"].items():
        lines.append(f"{name}: " + ", ".join(f"{key} {value}" for key, value in figures.items()))
    return "\n".join(lines)


if __name__ == "__main__":
    main()

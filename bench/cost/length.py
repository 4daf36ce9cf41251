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
import csv
import gzip
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha1
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script, only this folder is on the path

import numpy as np
import numpy.typing as npt

from headway.core.length_estimate import LengthEstimate
from headway.core.prediction_quality import kendall_tau
from headway.predict.lengths.encoders import text_encoder
from headway.predict.lengths.facts import RequestFacts, num_pieces
from headway.predict.lengths.features import HistoryFeatures, MagnusFeatures, user_input_tokens
from headway.predict.lengths.forest import LengthSettings, Rows
from headway.predict.lengths.predictor import ForestPredictor, LengthFeatures
from headway.traces.demo_tasks import demo_rows

# ---- data: no prompt is on both sides of a split -----------------------------------------------------

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
TASKS = (
    "mt_en_zh",
    "grammar_correction",
    "text_detox",
    "code_translation_java_cs",
    "bug_fixing",
    "code_comment",
)
"""The paper's applications: an instruction of their own each. Together they are one more set."""
LOGS = ("chat_arena_hard", "chat_halueval", "chat_gpteacher", "chat_alpaca")
"""What people really asked of assistants, or wrote as if."""
QUESTIONS = ("summary_dialogsum", "medium_qmsum_span", "long_qmsum_meeting", "long_squality_story")
COUNTS = ("sharegpt_llama2", "sharegpt_val10k_llama2", "arxiv_summarization_llama2", "bwb_translation_llama2")
"""Input and output tokens alone, in the order in which they were recorded."""
ALPACA_EVAL_MODEL = "vicuna-7b-v1.5"
ALL_TASKS = "all_tasks"
LIMIT = 1 << 15
_TEST_SHARE = 4
"""One prompt, or one row at the end of a recording, in 4 is judged."""


@dataclass(frozen=True, slots=True)
class Answered:
    """A request, and the tokens of its answer."""

    facts: RequestFacts
    output_tokens: int


@dataclass(frozen=True, slots=True)
class DataSet:
    """Answers that teach and answers that judge; `has_text` where the prompts are known."""

    name: str
    kind: str
    train: tuple[Answered, ...]
    test: tuple[Answered, ...]
    has_text: bool = True


def load_sets(data: Path | None, rows: int) -> list[DataSet]:
    """Every set of the folder, or, without one, the demo model's own tasks; of each at most so many rows.

    Answers are counted without a tokenizer, a token for each word, CJK character or punctuation mark, except
    where the source counted itself: `lengths/` (Llama-2's tokenizer), alpaca_eval (words), the demo's own.
    """
    if data is None:
        return _with_all(_demo(rows))
    sets = _with_all([_split(name, "task", texts(data, name), rows) for name in TASKS])
    sets += [_split(name, "question", texts(data, name), rows) for name in QUESTIONS]
    sets += [_split(name, "log", texts(data, name), rows) for name in LOGS]
    sets.append(_split("alpaca_eval", "log", _alpaca_eval(data), rows))
    return sets + [_recorded(data, name, rows) for name in COUNTS]


def _with_all(tasks: list[DataSet]) -> list[DataSet]:
    """The tasks, then all of them as one set, in an order in which they are mixed."""
    train = sorted((row for task in tasks for row in task.train), key=_digest)
    test = sorted((row for task in tasks for row in task.test), key=_digest)
    return [*tasks, DataSet(ALL_TASKS, "task", tuple(train), tuple(test))]


def _split(name: str, kind: str, answers: Iterator[Answered], rows: int) -> DataSet:
    """By a hash of the prompt, which also draws the rows where there are too many."""
    ordered = sorted(answers, key=_digest)[:rows]
    test = [row for row in ordered if int(_digest(row)[-8:], 16) % _TEST_SHARE == 0]
    train = [row for row in ordered if int(_digest(row)[-8:], 16) % _TEST_SHARE]
    return DataSet(name, kind, tuple(train), tuple(test))


def _digest(row: Answered) -> str:
    return sha1(f"{row.facts.instruction}\n{row.facts.user_input}".encode()).hexdigest()


def _answered(app: str, instruction: str, user_input: str, output_tokens: int) -> Answered:
    facts = RequestFacts(
        num_prompt_tokens=max(1, num_pieces(instruction) + num_pieces(user_input)),
        max_output_tokens=LIMIT,
        instruction=instruction,
        user_input=user_input,
        tenant=app,
    )
    return Answered(facts, max(1, output_tokens))


def texts(data: Path, name: str) -> Iterator[Answered]:
    """The rows of one file of `text/`."""
    for row in _lines(data / "text" / f"{name}.jsonl.gz"):
        instruction, user_input = row["instruction"], row["input"]
        if name == "chat_alpaca" and not user_input:  # nothing is shared there: the instruction is the prompt
            instruction, user_input = "", instruction
        yield _answered(name, instruction, user_input, num_pieces(row["output"]))


def _alpaca_eval(data: Path) -> Iterator[Answered]:
    with gzip.open(data / "text" / "alpaca_eval_output_lengths.csv.gz", "rt", encoding="utf-8") as file:
        words = {
            row["prompt_id"]: int(row["output_words"])
            for row in csv.DictReader(file)
            if row["model"] == ALPACA_EVAL_MODEL
        }
    for row in _lines(data / "text" / "alpaca_eval_prompts.jsonl.gz"):
        if (known := words.get(str(row["prompt_id"]))) is not None:
            yield _answered(row["dataset"], "", row["instruction"], known)


def _lines(path: Path) -> Iterator[dict[str, str]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def _recorded(data: Path, name: str, rows: int) -> DataSet:
    """The first rows of a recording; its last quarter judges."""
    with gzip.open(data / "lengths" / f"{name}.csv.gz", "rt", encoding="utf-8") as file:
        counts = [(int(row["input_tokens"]), int(row["output_tokens"])) for row in csv.DictReader(file)][
            :rows
        ]
    answers = [
        Answered(RequestFacts(num_prompt_tokens=prompt, max_output_tokens=LIMIT), max(1, output))
        for prompt, output in counts
    ]
    cut = len(answers) - len(answers) // _TEST_SHARE
    return DataSet(name, "recording", tuple(answers[:cut]), tuple(answers[cut:]), has_text=False)


def _demo(rows: int) -> list[DataSet]:
    """The demo model's tasks with the lengths that it decoded, by its own tokenizer."""
    by_app: dict[str, list[Answered]] = {}
    for row in demo_rows():
        facts = RequestFacts(
            num_prompt_tokens=row.num_prompt_tokens,
            max_output_tokens=LIMIT,
            instruction=row.instruction,
            user_input=row.user_input,
            tenant=row.app,
        )
        by_app.setdefault(row.app, []).append(Answered(facts, row.output_tokens))
    return [_split(app, "task", iter(answers), rows) for app, answers in by_app.items()]


def repeated(data: Path) -> Sequence[tuple[int, int]]:
    """Two answers of one model to one prompt, at temperatures 0.5 and 0.7: what no predictor can know."""
    with gzip.open(
        data / "lengths" / "vicuna7b_alpaca_repeat_lengths.csv.gz", "rt", encoding="utf-8"
    ) as file:
        return [(int(row["len_t0.5"]), int(row["len_t0.7"])) for row in csv.DictReader(file)]


def published_classes(data: Path) -> Sequence[tuple[int, int]]:
    """A published predictor's class of 5, and the answer's tokens: BERT on LMSYS-Chat-1M, Vicuna-13B."""
    with gzip.open(
        data / "lengths" / "proxy_predictor_lmsys_vicuna13b.csv.gz", "rt", encoding="utf-8"
    ) as file:
        return [(int(row["pred_class5"]), int(row["output_tokens"])) for row in csv.DictReader(file)]


# ---- figures -----------------------------------------------------------------------------------------

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


# ---- ways of predicting a length ---------------------------------------------------------------------

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


# ---- the bench ---------------------------------------------------------------------------------------

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

"""How well answer lengths are predicted from nothing, and at what cost: `python bench/cost/length.py --json`.

Every way is asked for each request of a stream before it learns of its answer, and has seen nothing before: the
product's predictor, the running median of the application, a line over the logarithm of the prompt's length for each
application, and the paper's forest on hashed texts (Magnus), fitted anew whenever answers have grown by half. No prompt
comes twice. The first 50 answers of a stream are not judged. `coverage` aims at 0.8. Chats are the hard case: hardly
anything in a prompt says how long a free answer will be.

Half of the prompts, by their digest, were used to choose the predictor's constants; `--half report` (the default) is
the other. Answers are counted without a tokenizer (a token for each word, CJK character or punctuation mark) except in
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
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha1
from math import exp, log
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script, only this folder is on the path

import numpy as np
from headway_reproduce.magnus.features import MagnusFeatures
from headway_reproduce.magnus.forest import LengthForest, Rows

from headway.core.length_estimate import LengthEstimate
from headway.core.prediction_quality import kendall_tau
from headway.predict.lengths.facts import LengthPredictor, RequestFacts, SharedPrefix, num_pieces
from headway.predict.lengths.predictor import LengthLearner
from headway.predict.lengths.ridge import OnlineRidge
from headway.statistics import mean, median
from headway.traces.demo_tasks import demo_rows, prompt_text

# ---- streams of answers ------------------------------------------------------------------------------

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
TASKS = (
    "mt_en_zh",
    "grammar_correction",
    "text_detox",
    "code_translation_java_cs",
    "bug_fixing",
    "code_comment",
)
"""The paper's applications, each with its own instruction."""
CHATS = ("chat_arena_hard", "chat_halueval", "chat_gpteacher", "chat_alpaca")
"""Real questions to assistants, or texts written in that style."""
QUESTIONS = ("summary_dialogsum", "medium_qmsum_span", "long_qmsum_meeting", "long_squality_story")
COUNTS = ("sharegpt_llama2", "sharegpt_val10k_llama2", "arxiv_summarization_llama2", "bwb_translation_llama2")
"""Recordings with only input and output tokens, in order."""
MIXED = {"all_tasks": TASKS, "all_chats": CHATS, "all": (*TASKS, *CHATS, *QUESTIONS)}
"""Streams with several applications."""
ALPACA_EVAL_MODEL = "vicuna-7b-v1.5"
TUNE, REPORT = "tune", "report"
LIMIT = 1 << 15


@dataclass(frozen=True, slots=True)
class Answered:
    """A request, and its answer's tokens."""

    application: str
    prompt: str
    prompt_tokens: int
    output_tokens: int

    @property
    def digest(self) -> str:
        """Digest of the prompt, which decides the half and the order of a request."""
        return sha1(self.prompt.encode()).hexdigest()


def load_streams(data: Path | None, rows: int, half: str) -> dict[str, list[Answered]]:
    """Streams by name, with at most `rows` rows each: those of the folder, or the demo model's own tasks without
    one.
    """
    if data is None:
        demo = [
            Answered(
                row.app,
                prompt_text(row.instruction, row.user_input),
                row.num_prompt_tokens,
                row.output_tokens,
            )
            for row in demo_rows()
        ]
        return {"demo": _drawn(demo, half)[:rows]}
    streams = {name: _drawn(texts(data, name), half)[:rows] for name in (*TASKS, *CHATS, *QUESTIONS)}
    for name, parts in MIXED.items():
        each = max(1, 2 * rows // len(parts))
        streams[name] = sorted(
            (row for part in parts for row in streams[part][:each]), key=lambda row: row.digest
        )
    streams["alpaca_eval"] = _drawn(_alpaca_eval(data), half)[:rows]
    return streams | {name: _recorded(data, name, rows, half) for name in COUNTS}


def _drawn(answers: Iterator[Answered] | Sequence[Answered], half: str) -> list[Answered]:
    """One half of the prompts, each once, in the order of their digests."""
    once = {row.digest: row for row in answers}
    odd = half == REPORT
    return [once[digest] for digest in sorted(once) if int(digest[8:16], 16) % 2 == odd]


def texts(data: Path, name: str) -> Iterator[Answered]:
    """The rows of one file of `text/`."""
    for row in _lines(data / "text" / f"{name}.jsonl.gz"):
        prompt = "\n\n".join(filter(None, (row["instruction"], row["input"])))
        yield Answered(name, prompt, max(1, num_pieces(prompt)), max(1, num_pieces(row["output"])))


def _alpaca_eval(data: Path) -> Iterator[Answered]:
    with gzip.open(data / "text" / "alpaca_eval_output_lengths.csv.gz", "rt", encoding="utf-8") as file:
        words = {
            row["prompt_id"]: int(row["output_words"])
            for row in csv.DictReader(file)
            if row["model"] == ALPACA_EVAL_MODEL
        }
    for row in _lines(data / "text" / "alpaca_eval_prompts.jsonl.gz"):
        prompt = row["instruction"]
        if (known := words.get(str(row["prompt_id"]))) is not None:
            yield Answered("alpaca_eval", prompt, max(1, num_pieces(prompt)), max(1, known))


def _lines(path: Path) -> Iterator[dict[str, str]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def _recorded(data: Path, name: str, rows: int, half: str) -> list[Answered]:
    """The first rows of a recording, or as many after these."""
    with gzip.open(data / "lengths" / f"{name}.csv.gz", "rt", encoding="utf-8") as file:
        counts = [(int(row["input_tokens"]), int(row["output_tokens"])) for row in csv.DictReader(file)]
    start = rows * (half == REPORT)
    return [Answered("", "", prompt, max(1, output)) for prompt, output in counts[start : start + rows]]


def repeated(data: Path) -> Sequence[tuple[int, int]]:
    """Pairs of answers of one model to one prompt, at temperatures 0.5 and 0.7: a limit for any predictor."""
    path = data / "lengths" / "vicuna7b_alpaca_repeat_lengths.csv.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [(int(row["len_t0.5"]), int(row["len_t0.7"])) for row in csv.DictReader(file)]


# ---- ways of predicting ------------------------------------------------------------------------------


def application(facts: RequestFacts) -> str:
    """What the simple predictors take for an application."""
    return facts.tenant or facts.instruction


class RunningMedian:
    """The median of the application's last 200 answers; before the first, of all answers."""

    def __init__(self) -> None:
        self._all: deque[int] = deque(maxlen=200)
        self._own: dict[str, deque[int]] = defaultdict(lambda: deque(maxlen=200))

    def predict(self, facts: RequestFacts) -> LengthEstimate | None:
        """The median; None before any answer."""
        known = self._own[application(facts)] or self._all
        return LengthEstimate.around(median(known)) if known else None

    def observe(self, facts: RequestFacts, output_tokens: int) -> None:
        """Add an answer."""
        self._all.append(output_tokens)
        self._own[application(facts)].append(output_tokens)


class InputLength:
    """A linear model from the log of the prompt's tokens to that of the answer's, for each application."""

    def __init__(self) -> None:
        self._all = self._line()
        self._own: dict[str, OnlineRidge] = defaultdict(self._line)

    def predict(self, facts: RequestFacts) -> LengthEstimate:
        """The line's prediction; before the application's first answer, that of all answers."""
        line = self._own.get(application(facts), self._all)
        return LengthEstimate.around(exp(min(max(line.predict(self._inputs(facts)), 0.0), log(LIMIT))))

    def observe(self, facts: RequestFacts, output_tokens: int) -> None:
        """Add a point to both lines."""
        for line in (self._all, self._own[application(facts)]):
            line.observe(self._inputs(facts), log(output_tokens), 1.0)

    @staticmethod
    def _line() -> OnlineRidge:
        return OnlineRidge(np.array([1e3, 1.0]), memory=1e12)

    @staticmethod
    def _inputs(facts: RequestFacts) -> Any:
        return np.array([1.0, log(facts.num_prompt_tokens)])


class Forest:
    """Magnus's forest on hashed texts, fitted to all answers so far at 50, then whenever they have grown by half."""

    def __init__(self) -> None:
        self._features = MagnusFeatures()
        self._rows: list[Rows] = []
        self._tokens: list[float] = []
        self._due = SKIPPED
        self._forest: LengthForest | None = None

    def predict(self, facts: RequestFacts) -> LengthEstimate | None:
        """The forest's prediction; None before the first fit."""
        self._row = self._features.rows((facts,))[0]
        return (
            None
            if self._forest is None
            else LengthEstimate.around(float(self._forest.ask(self._row[None])[0]))
        )

    def observe(self, facts: RequestFacts, output_tokens: int) -> None:
        """Add a row: that of the last predicted request."""
        self._rows.append(self._row)
        self._tokens.append(output_tokens)
        if len(self._tokens) >= self._due:
            self._due = 3 * self._due // 2
            self._forest = LengthForest(np.array(self._rows), np.array(self._tokens))


LEARNED, MEDIAN, INPUT, MAGNUS = "learned", "running median", "input length", "magnus"
WAYS: dict[str, Callable[[], LengthPredictor]] = {
    LEARNED: LengthLearner,
    MEDIAN: RunningMedian,
    INPUT: InputLength,
    MAGNUS: Forest,
}
SIMPLE = (MEDIAN, INPUT)

# ---- figures -----------------------------------------------------------------------------------------

SKIPPED = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Errors and pinball losses in tokens; Kendall's tau; the share within the interval; median times."""

    mae: float
    tau: float
    pinball: float
    coverage: float
    predict_us: float
    observe_us: float


def figures(
    estimates: Sequence[LengthEstimate], tokens: Sequence[int], times_us: Sequence[Sequence[float]]
) -> Figures:
    """The figures of predictions of answers of so many tokens."""
    pairs = list(zip(estimates, tokens, strict=True))
    predict_us, observe_us = (median(times) for times in times_us)
    return Figures(
        mae=mean(abs(said.tokens - actual) for said, actual in pairs),
        tau=kendall_tau((said.tokens, actual) for said, actual in pairs),
        pinball=mean(said.pinball_tokens(actual) for said, actual in pairs),
        coverage=mean(said.low_tokens <= actual <= said.high_tokens for said, actual in pairs),
        predict_us=predict_us,
        observe_us=observe_us,
    )


def judged(stream: Sequence[Answered], way: LengthPredictor, *, tenants: bool = True) -> Figures:
    """Run a fresh predictor on a stream, answer by answer, with the request's tenant or only its prompt."""
    prefixes = SharedPrefix()
    estimates, tokens = [], []
    times_us: tuple[list[float], list[float]] = ([], [])
    for number, row in enumerate(stream):
        facts = prefixes.facts(
            row.prompt,
            num_prompt_tokens=row.prompt_tokens,
            max_output_tokens=LIMIT,
            tenant=row.application if tenants else "",
        )
        started_s = time.process_time()
        said = way.predict(facts)
        predicted_s = time.process_time()
        way.observe(facts, row.output_tokens)
        times_us[0].append(1e6 * (predicted_s - started_s))
        times_us[1].append(1e6 * (time.process_time() - predicted_s))
        if number >= SKIPPED and said is not None:
            estimates.append(said)
            tokens.append(row.output_tokens)
    return figures(estimates, tokens, times_us)


# ---- the bench ---------------------------------------------------------------------------------------

ROWS = 1500
LEAST_ROWS = 100
"""Least rows of a stream: with fewer, a fresh predictor has hardly begun when it is judged."""
_COLUMNS = {"mae": 1, "tau": 3, "pinball": 2, "coverage": 3, "predict_us": 0, "observe_us": 0}


def main() -> None:
    """Print `{"data", "rows_a_stream", "half", "streams": [{"name", "ways": {...}}], "beaten", "mean", "repeated"}`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, in place of a table")
    parser.add_argument(
        "--data", type=Path, help="folder with text/ and lengths/; default: the shared data, else demo tasks"
    )
    parser.add_argument("--rows", type=int, default=ROWS, help=f"at most so many of each stream ({ROWS})")
    parser.add_argument("--half", choices=(TUNE, REPORT), default=REPORT, help="which prompts")
    parser.add_argument(
        "--no-tenants", action="store_true", help="ways see the prompt alone, not whose it is"
    )
    arguments = parser.parse_args()
    if arguments.rows < LEAST_ROWS:
        parser.error(f"--rows is {arguments.rows}; accepted: {LEAST_ROWS} or more")
    data = arguments.data or (SHARED if SHARED.is_dir() else None)
    streams = load_streams(data, arguments.rows, arguments.half)
    found = {
        "data": "demo-tasks" if data is None else "shared",
        "rows_a_stream": arguments.rows,
        "half": arguments.half,
        **measured(streams, tenants=not arguments.no_tenants),
        "repeated": None if data is None else _again(data),
    }
    print(json.dumps(found) if arguments.json else table(found))


def measured(streams: dict[str, list[Answered]], *, tenants: bool = True) -> dict[str, Any]:
    """Every predictor on every stream, where a simple one beats the product, and the overall comparison."""
    rows = []
    for name, stream in streams.items():
        if len(stream) <= SKIPPED:
            continue
        print(f"{name}: {len(stream)} requests", file=sys.stderr)
        ways = {way: judged(stream, make(), tenants=tenants) for way, make in WAYS.items()}
        rows.append(
            {"name": name, "rows": len(stream), "ways": {way: rounded(each) for way, each in ways.items()}}
        )
    return {"streams": rows, "beaten": beaten(rows), "mean": means(rows)}


def rounded(figures: Figures) -> dict[str, float]:
    """The figures with significant digits only."""
    values = asdict(figures)
    return {name: round(values[name], digits + 1) for name, digits in _COLUMNS.items()}


def beaten(rows: Sequence[dict[str, Any]]) -> dict[str, list[str]]:
    """Figure -> streams on which a simple predictor is better than the product's, and by how much."""
    found: dict[str, list[str]] = {"mae": [], "tau": []}
    for row in rows:
        own = row["ways"][LEARNED]
        for way in SIMPLE:
            other = row["ways"][way]
            if other["mae"] < own["mae"]:
                found["mae"].append(f"{row['name']}: {way} by {100 * (own['mae'] / other['mae'] - 1):.1f} %")
            if other["tau"] > own["tau"]:
                found["tau"].append(f"{row['name']}: {way} by {other['tau'] - own['tau']:.3f}")
    return found


def means(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Predictor -> mean tau, and the geometric mean of its errors over the product's."""
    return {
        way: {
            "tau": round(mean(row["ways"][way]["tau"] for row in rows), 3),
            "mae_over_learned": round(
                exp(mean(log(row["ways"][way]["mae"] / row["ways"][LEARNED]["mae"]) for row in rows)), 3
            ),
        }
        for way in WAYS
    }


def _again(data: Path) -> dict[str, float]:
    """The distance between two answers of the same model to the same prompt."""
    pairs = repeated(data)
    return {
        "mae": round(mean(abs(one - other) for one, other in pairs), 1),
        "mean_tokens": round(mean(other for _, other in pairs), 1),
        "tau": round(kendall_tau(pairs), 3),
    }


def table(found: dict[str, Any]) -> str:
    """One block for each stream, one line for each predictor."""
    lines = []
    for row in found["streams"]:
        lines.append(f"{row['name']}: {row['rows']} requests")
        lines.append(f"  {'':16}" + "".join(f"{name:>12}" for name in _COLUMNS))
        for name, figures in row["ways"].items():
            cells = (f"{figures[column]:.{digits}f}" for column, digits in _COLUMNS.items())
            lines.append(f"  {name:16}" + "".join(f"{cell:>12}" for cell in cells))
    for figure, streams in found["beaten"].items():
        lines.append(f"{figure} of {LEARNED} beaten on: {'; '.join(streams) or 'no stream'}")
    for way, values in found["mean"].items():
        lines.append(f"{way}: " + ", ".join(f"{key} {value}" for key, value in values.items()))
    if found["repeated"]:
        lines.append(
            "another answer to the same prompt: "
            + ", ".join(f"{k} {v}" for k, v in found["repeated"].items())
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()

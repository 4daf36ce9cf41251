"""Prompts and the lengths of their answers, split so that no prompt is on both sides."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha1
from pathlib import Path

from headway.predict.length import RequestFacts
from headway.predict.text_pieces import num_pieces
from headway.traces.demo_tasks import demo_rows

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

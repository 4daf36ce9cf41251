"""Magnus's eight tasks: which rows train the predictor, which are served, and the streams drawn from them.

Source: Cheng et al., "Enabling Efficient Batch Serving for LMaaS via Generation Length Prediction" (ICWS 2024), section
IV. Lengths are measured, never made from the input: those of the references that people wrote, or those of answers that
the demo model itself decoded.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from itertools import accumulate, groupby
from pathlib import Path
from random import Random

from headway.errors import ConfigError, TraceError
from headway.predict.lengths.facts import RequestFacts, num_pieces
from headway.traces import TraceRequest
from headway.traces.demo_tasks import demo_rows
from headway_reproduce.magnus.setting import REQUESTS_A_TASK

SHARED, DEMO = "shared", "demo-tasks"
"""Names of the data sources in the output."""
SHARED_FOLDER = Path("../shared/data")
"""Where the data lies by default, relative to where the command runs."""
TRAINING_ROWS, WORKLOAD_ROWS = 2500, 7500
"""Rows of each task; where there are fewer, in the same proportion (section IV-A)."""
LONGEST_INPUT, LONGEST_OUTPUT = 1024, 1024
"""Lmax and Gmax in tokens; longer texts count as this long."""


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A request and the length of its answer."""

    task: str
    instruction: str
    user_input: str
    prompt_tokens: int
    output_tokens: int

    @property
    def input_tokens(self) -> int:
        """Tokens of the user's input alone (the paper's UIL), counted without a tokenizer."""
        return num_pieces(self.user_input)

    def facts(self) -> RequestFacts:
        """The facts that a server knows about the request on arrival."""
        return RequestFacts(
            num_prompt_tokens=self.prompt_tokens,
            max_output_tokens=LONGEST_OUTPUT,
            instruction=self.instruction,
            user_input=self.user_input,
            tenant=self.task,
        )


@dataclass(frozen=True, slots=True)
class TaskData:
    """One task's training rows and served rows, with no input on both sides."""

    name: str
    training: tuple[TaskRow, ...]
    workload: tuple[TaskRow, ...]


@dataclass(frozen=True, slots=True)
class DataSource:
    """The source of the rows: the shared data's folder, or (None) the demo model's own tasks."""

    folder: str | None = None

    @property
    def name(self) -> str:
        """The name in the output."""
        return DEMO if self.folder is None else SHARED

    @property
    def title(self) -> str:
        """Whose answers the lengths are from."""
        return "answers of the demo model" if self.folder is None else "reference answers of the shared data"

    @property
    def counted(self) -> str:
        """The definition of a token."""
        if self.folder is None:
            return "the demo model's own tokens, answers as it decoded them"
        return "a token is a word, a Chinese, Japanese or Korean character or a punctuation mark, in references too"


def find_data(folder: Path | None) -> DataSource:
    """The named folder; without a name the shared data if it is there, else the demo's tasks.

    Raises ConfigError for a named folder without the tasks' files.
    """
    wanted = SHARED_FOLDER if folder is None else folder
    missing = [
        stem for stem in dict.fromkeys(task.file for task in TASKS) if not _path(wanted, stem).is_file()
    ]
    if not missing:
        return DataSource(str(wanted.resolve()))
    if folder is not None:
        raise ConfigError(f"{folder} has no {_path(Path(), missing[0])}; accepted: the shared data's folder")
    return DataSource()


# ---- rows ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Task:
    """The rows of a shared file whose instruction contains a phrase."""

    name: str
    file: str
    instruction: str = ""


TASKS = (
    _Task("MT en-zh", "mt_en_zh", "into Chinese"),
    _Task("MT zh-en", "mt_en_zh", "into English"),
    _Task("GC", "grammar_correction"),
    _Task("TD", "text_detox"),
    _Task("CT C#-Java", "code_translation_java_cs", "into Java"),
    _Task("CT Java-C#", "code_translation_java_cs", "into C#"),
    _Task("BF", "bug_fixing"),
    _Task("CC", "code_comment"),
)
"""The paper's tasks in its order (section IV-A)."""


@lru_cache(maxsize=2)
def load_tasks(source: DataSource) -> tuple[TaskData, ...]:
    """Every task, split. Raises TraceError for a file that cannot be read. O(rows)."""
    rows = _demo_rows() if source.folder is None else _shared_rows(Path(source.folder))
    return tuple(split(name, found) for name, found in rows.items())


@lru_cache(maxsize=2)
def data_digest(source: DataSource) -> str:
    """Distinguishes any two sets of rows, wherever they are stored."""
    digest = sha256()
    for task in load_tasks(source):
        digest.update(repr(task).encode())
    return digest.hexdigest()


def split(name: str, rows: Sequence[TaskRow]) -> TaskData:
    """A quarter of the rows to train on, at most 2,500, and three times as many to serve.

    Rows are in the order of a digest of the input, so that no row's place depends on the others; rows with one input
    stay together, on one side.
    """
    train = min(TRAINING_ROWS, len(rows) * TRAINING_ROWS // (TRAINING_ROWS + WORKLOAD_ROWS))
    training: list[TaskRow] = []
    workload: list[TaskRow] = []
    ordered = sorted(rows, key=_place)
    for _, same in groupby(ordered, key=_place):
        (training if len(training) < train else workload).extend(same)
    return TaskData(name, tuple(training), tuple(workload[:WORKLOAD_ROWS]))


def _place(row: TaskRow) -> str:
    return sha256(f"magnus:{row.user_input}".encode()).hexdigest()


def _shared_rows(folder: Path) -> dict[str, list[TaskRow]]:
    return {task.name: list(_of_task(task, folder)) for task in TASKS}


def _of_task(task: _Task, folder: Path) -> Iterator[TaskRow]:
    path = _path(folder, task.file)
    try:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                row = json.loads(line)
                if task.instruction in row["instruction"]:
                    yield _counted(task.name, row["instruction"], row["input"], row["output"])
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise TraceError(f"{path} cannot be read: {error}") from error


def _counted(task: str, instruction: str, user_input: str, output: str) -> TaskRow:
    return TaskRow(
        task,
        instruction,
        user_input,
        prompt_tokens=_clipped(num_pieces(instruction) + num_pieces(user_input), LONGEST_INPUT),
        output_tokens=_clipped(num_pieces(output), LONGEST_OUTPUT),
    )


def _demo_rows() -> dict[str, list[TaskRow]]:
    found: dict[str, list[TaskRow]] = {}
    for row in demo_rows():
        prompt = _clipped(row.num_prompt_tokens, LONGEST_INPUT)
        output = _clipped(row.output_tokens, LONGEST_OUTPUT)
        found.setdefault(row.app, []).append(
            TaskRow(row.app, row.instruction, row.user_input, prompt_tokens=prompt, output_tokens=output)
        )
    return found


def _clipped(tokens: int, most: int) -> int:
    return max(1, min(tokens, most))


def _path(folder: Path, stem: str) -> Path:
    return folder / "text" / f"{stem}.jsonl.gz"


# ---- streams: the tasks in random order, arriving as a Poisson process ---------------------------------


@dataclass(frozen=True, slots=True)
class DrawnRow:
    """A served row, and its arrival time at one request a second."""

    row: TaskRow
    place: float


def requests_a_task(source: DataSource) -> int:
    """The number of requests of each task that every task has."""
    return min(REQUESTS_A_TASK, *(len(task.workload) for task in load_tasks(source)))


@lru_cache(maxsize=2)
def drawn_rows(source: DataSource, seed: int) -> tuple[DrawnRow, ...]:
    """A seed's requests: as many of each task, none twice, in random order. The same at every rate."""
    rng = Random(f"magnus {seed}")
    count = requests_a_task(source)
    rows = [row for task in load_tasks(source) for row in rng.sample(task.workload, count)]
    rng.shuffle(rows)
    places = accumulate(rng.expovariate(1.0) for _ in rows)
    return tuple(DrawnRow(row, place) for row, place in zip(rows, places, strict=True))


def task_requests(source: DataSource, seed: int, rate_rps: float, stretch: int = 1) -> list[TraceRequest]:
    """The seed's requests at a rate, or all at 0 s where it is 0. A request's id is its number.

    Prompts and answers are `stretch` times their length, Lmax and Gmax at most.
    """
    return [
        TraceRequest(
            id=str(number),
            arrival_s=drawn.place / rate_rps if rate_rps else 0.0,
            input_tokens=_clipped(stretch * drawn.row.prompt_tokens, LONGEST_INPUT),
            output_tokens=_clipped(stretch * drawn.row.output_tokens, LONGEST_OUTPUT),
            max_output_tokens=LONGEST_OUTPUT,
            tenant=drawn.row.task,
        )
        for number, drawn in enumerate(drawn_rows(source, seed))
    ]

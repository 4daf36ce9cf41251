from __future__ import annotations

from pathlib import Path
from statistics import correlation

import pytest
from headway_reproduce.magnus.data import (
    DEMO,
    SHARED,
    DataSource,
    TaskRow,
    data_digest,
    drawn_rows,
    find_data,
    load_tasks,
    requests_a_task,
    split,
    task_requests,
)
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import ConfigError, TraceError
from headway.traces.demo_tasks import demo_rows
from tests.reproduce.magnus.magnus_rows import ROWS, write_rows

DATA = Path(__file__).resolve().parents[3].parent / "shared" / "data"
needs_shared = pytest.mark.skipif(not (DATA / "text").is_dir(), reason="the shared text pairs are not here")


def row(user_input: str, output_tokens: int = 5) -> TaskRow:
    return TaskRow("GC", "Correct it.", user_input, prompt_tokens=8, output_tokens=output_tokens)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> DataSource:
    return find_data(write_rows(tmp_path_factory.mktemp("data")))


# ---- the split -----------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.text(max_size=3), st.integers(1, 9)), max_size=60))
def test_no_input_is_on_both_sides_and_no_row_is_lost(pairs: list[tuple[str, int]]) -> None:
    rows = [row(*pair) for pair in pairs]
    data = split("GC", rows)
    assert not {each.user_input for each in data.training} & {each.user_input for each in data.workload}
    assert sorted(map(repr, [*data.training, *data.workload])) == sorted(map(repr, rows))


@given(st.lists(st.text(max_size=4), unique=True, max_size=60), st.randoms())
def test_the_order_of_the_rows_decides_nothing(texts: list[str], random: object) -> None:
    rows = [row(text) for text in texts]
    shuffled = sorted(rows, key=lambda _: random.random())  # type: ignore[attr-defined]
    assert split("GC", shuffled) == split("GC", rows)


def test_a_quarter_trains() -> None:
    data = split("GC", [row(f"text {number}") for number in range(400)])
    assert (len(data.training), len(data.workload)) == (100, 300)


def test_no_more_than_the_paper_has() -> None:
    data = split("GC", [row(f"text {number}") for number in range(11_000)])
    assert (len(data.training), len(data.workload)) == (2500, 7500)


# ---- rows ----------------------------------------------------------------------------------------------


def test_tasks_of_a_folder_are_told_apart_by_their_instructions(source: DataSource) -> None:
    tasks = load_tasks(source)
    assert [task.name for task in tasks] == [
        *("MT en-zh", "MT zh-en", "GC", "TD", "CT C#-Java", "CT Java-C#", "BF", "CC")
    ]
    assert {len(task.training) + len(task.workload) for task in tasks} == {ROWS}


def test_lengths_are_counted_in_words_and_marks(source: DataSource) -> None:
    rows = {each.user_input: each for each in load_tasks(source)[2].workload}
    found = next(iter(rows.values()))
    words = len(found.user_input.split())
    # "Correct the sentence." is three words and a mark; answers of the second file have 2 + n // 2 words.
    assert (found.input_tokens, found.prompt_tokens) == (words, words + 4)
    assert found.output_tokens == 2 + (words - 4) // 2
    assert found.facts().tenant == "GC"


def test_long_texts_count_as_the_longest(tmp_path: Path) -> None:
    folder = write_rows(tmp_path)
    import gzip
    import json

    long = {"instruction": "Fix it.", "input": "a " * 3000, "output": "b " * 3000}
    (folder / "text" / "bug_fixing.jsonl.gz").write_bytes(gzip.compress(json.dumps(long).encode()))
    task = next(task for task in load_tasks(find_data(folder)) if task.name == "BF")
    [found] = [*task.training, *task.workload]
    assert (found.prompt_tokens, found.output_tokens) == (1024, 1024)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    folder = write_rows(tmp_path)
    (folder / "text" / "text_detox.jsonl.gz").write_bytes(b"no gzip")
    with pytest.raises(TraceError, match=r"text_detox.jsonl.gz cannot be read"):
        load_tasks(find_data(folder))


def test_a_folder_without_the_tasks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"has no text/mt_en_zh.jsonl.gz; accepted: the shared data's folder"
    ):
        find_data(tmp_path)


def test_the_digest_is_of_the_rows_and_not_of_their_place(source: DataSource, tmp_path: Path) -> None:
    other = find_data(write_rows(tmp_path))
    assert other != source
    assert data_digest(other) == data_digest(source)


# ---- the demo's tasks ----------------------------------------------------------------------------------


def test_without_shared_data_the_demos_tasks_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = find_data(None)
    assert found.name == DEMO
    tasks = load_tasks(found)
    assert sum(len(task.training) + len(task.workload) for task in tasks) == len(demo_rows())
    lengths = {(each.app, each.user_input): each.output_tokens for each in demo_rows()}
    some = tasks[0].workload[0]
    assert some.output_tokens == lengths[tasks[0].name, some.user_input]


# ---- the stream ----------------------------------------------------------------------------------------


def test_a_run_has_as_many_of_each_task_and_none_twice(source: DataSource) -> None:
    drawn = drawn_rows(source, 0)
    count = requests_a_task(source)
    assert len(drawn) == 8 * count == 8 * 30
    assert len({(each.row.task, each.row.user_input) for each in drawn}) == len(drawn)
    training = {(task.name, each.user_input) for task in load_tasks(source) for each in task.training}
    assert not training & {(each.row.task, each.row.user_input) for each in drawn}


def test_a_rate_only_stretches_time(source: DataSource) -> None:
    slow, fast = task_requests(source, 1, 2.0), task_requests(source, 1, 8.0)
    for one, other in zip(slow, fast, strict=True):
        assert one.arrival_s == pytest.approx(4 * other.arrival_s)
        assert (one.id, one.tenant, one.output_tokens) == (other.id, other.tenant, other.output_tokens)
    assert {request.arrival_s for request in task_requests(source, 1, 0.0)} == {0.0}


def test_another_seed_is_another_stream(source: DataSource) -> None:
    assert drawn_rows(source, 0) != drawn_rows(source, 1)


# ---- the shared data itself ----------------------------------------------------------------------------


@needs_shared
def test_the_shared_tasks_are_a_quarter_and_three() -> None:
    found = find_data(DATA)
    assert found.name == SHARED
    for task in load_tasks(found):
        rows = len(task.training) + len(task.workload)
        assert len(task.training) == pytest.approx(rows / 4, abs=3)
        assert not {each.user_input for each in task.training} & {each.user_input for each in task.workload}


@needs_shared
def test_input_and_answer_go_together_but_in_comments() -> None:
    found = {
        task.name: correlation(
            [each.input_tokens for each in task.workload], [each.output_tokens for each in task.workload]
        )
        for task in load_tasks(find_data(DATA))
    }
    assert found.pop("CC") < 0.3
    assert min(found.values()) > 0.8

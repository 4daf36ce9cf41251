"""The bench of predicted lengths: its own arithmetic, and a small instance of it on made data."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from bench.cost.length import (
    ALL_TASKS,
    APP_MEAN,
    COUNTS,
    HISTORY,
    INPUT_FOREST,
    LINEAR,
    LOGS,
    MEAN,
    QUESTIONS,
    SHARED,
    TASKS,
    Answered,
    DataSet,
    Remembering,
    figures,
    judged,
    load_sets,
    main,
    measured,
    median_us,
    no_better,
    plain_figures,
    references,
    table,
    texts,
)
from headway.core.length_estimate import LengthEstimate
from headway.errors import ConfigError
from headway.predict.lengths.facts import RequestFacts


def made(count: int, *, has_text: bool = True) -> DataSet:
    """Answers twice as long as their inputs for one application, 5 tokens for the other."""
    chance = np.random.default_rng(2)
    rows = []
    for _ in range(count):
        words, doubles = int(chance.integers(10, 60)), bool(chance.integers(2))
        facts = RequestFacts(
            num_prompt_tokens=words + 2,
            max_output_tokens=1000,
            instruction="say twice" if doubles else "sum up",
            user_input=" ".join(str(chance.integers(100)) for _ in range(words)),
            tenant="double" if doubles else "short",
        )
        rows.append(Answered(facts, 2 * words if doubles else 5))
    cut = count * 3 // 4
    return DataSet("made", "task", tuple(rows[:cut]), tuple(rows[cut:]), has_text)


def test_figures_by_hand() -> None:
    tokens = np.array([10.0, 20.0, 40.0])
    estimates = [LengthEstimate(10, 5, 20), LengthEstimate(23, 21, 30), LengthEstimate(36, 30, 50)]
    found = figures(estimates, tokens)
    # Errors 0, 3, -4: mean of the absolute ones 7 / 3, root of 25 / 3; the order is right; 2 of 3 intervals hold.
    assert (found.mae, found.rmse, found.tau) == pytest.approx((7 / 3, (25 / 3) ** 0.5, 1.0))
    assert found.coverage == pytest.approx(2 / 3)
    assert plain_figures(np.array([3.0, 2.0, 1.0]), tokens).tau == -1.0
    assert plain_figures(tokens, tokens).coverage is None


def test_a_median_is_of_single_calls() -> None:
    called: list[int] = []
    assert median_us(called.append, 5) > 0
    assert called == [0, 1, 2, 3, 4]


def test_every_way_learns_what_it_can_see() -> None:
    found = judged(made(400), [Remembering("hash")])
    assert found[MEAN].tau == 0.0
    assert found[APP_MEAN].mae < found[MEAN].mae
    assert found[INPUT_FOREST].mae > 20  # 5 or 2 x input: the length does not say which
    for way in (HISTORY, "hash", "hash, rf"):
        assert found[way].mae < 0.2 * found[APP_MEAN].mae, way
        assert found[way].tau > 0.8
    assert found["hash"].encode_us is not None
    assert found[LINEAR].coverage is None


def test_without_texts_it_learns_as_answers_end() -> None:
    found = judged(made(400, has_text=False), [Remembering("hash")])
    assert set(found) == {MEAN, APP_MEAN, LINEAR, INPUT_FOREST, HISTORY}
    assert found[HISTORY].mae < 0.3 * found[APP_MEAN].mae


def test_where_nothing_can_be_known_it_says_so() -> None:
    row = {"name": "noise", "ways": {APP_MEAN: {"mae": 5.0}, MEAN: {"mae": 9.0}, "hash": {"mae": 5.0}}}
    other = {"name": "task", "ways": {APP_MEAN: {"mae": 5.0}, "hash": {"mae": 4.9}}}
    assert no_better([row, other]) == {"hash": ["noise"]}


def test_a_table_names_every_way_and_set() -> None:
    found = {**measured([made(400)], [Remembering("hash")]), "references": {"other": {"tau": 0.5}}}
    text = table(json.loads(json.dumps(found)))
    for name in ("made (task): 300 teach, 100 judge", *found["sets"][0]["ways"], "other: tau 0.5"):
        assert name in text


def write_folder(folder: Path, rows: int) -> None:
    """The shared data in small: two answers to every prompt, and recordings of rising lengths."""
    for sub in ("text", "lengths"):
        (folder / sub).mkdir()
    for name in (*TASKS, *QUESTIONS, *LOGS):
        with gzip.open(folder / "text" / f"{name}.jsonl.gz", "wt", encoding="utf-8") as file:
            for number in range(rows):
                prompt = number // 2
                text = f"this {prompt}" + " more" * (prompt % 5)
                row = {"instruction": "Do it.", "input": text, "output": "done " * (number + 1)}
                file.write(json.dumps(row) + "\n")
    with gzip.open(folder / "text" / "alpaca_eval_prompts.jsonl.gz", "wt") as file:
        for number in range(rows):
            text = f"Why {number}" + "?" * (number % 5)
            file.write(json.dumps({"prompt_id": number, "dataset": "koala", "instruction": text}) + "\n")
    with gzip.open(folder / "text" / "alpaca_eval_output_lengths.csv.gz", "wt") as file:
        file.write("prompt_id,model,output_chars,output_words\n")
        for number in range(rows):
            file.write(f"{number},vicuna-7b-v1.5,9,{number + 1}\n{number},another,9,999\n")
    for name in COUNTS:
        with gzip.open(folder / "lengths" / f"{name}.csv.gz", "wt") as file:
            file.write("input_tokens,output_tokens\n" + "".join(f"{n},{n + 1}\n" for n in range(rows)))
    with gzip.open(folder / "lengths" / "vicuna7b_alpaca_repeat_lengths.csv.gz", "wt") as file:
        file.write("alpaca_id,len_t0.5,len_t0.7\n1,10,14\n2,20,30\n")
    with gzip.open(folder / "lengths" / "proxy_predictor_lmsys_vicuna13b.csv.gz", "wt") as file:
        file.write("output_tokens,pred_class5\n10,0\n20,1\n30,1\n")


def test_a_folder_is_read_and_split_by_prompt_and_by_time(tmp_path: Path) -> None:
    write_folder(tmp_path, rows=80)
    sets = {data.name: data for data in load_sets(tmp_path, rows=1000)}
    assert list(sets) == [*TASKS, ALL_TASKS, *QUESTIONS, *LOGS, "alpaca_eval", *COUNTS]
    task = sets["text_detox"]
    assert len(task.train) + len(task.test) == 80
    assert not {row.facts for row in task.train} & {row.facts for row in task.test}
    assert 8 <= len(task.test) <= 32
    # "Do it." and "this 0", without or with "more" up to four times: three pieces and two to six.
    assert {row.facts.num_prompt_tokens for row in task.train} == {5, 6, 7, 8, 9}
    assert sorted(row.output_tokens for row in (*task.train, *task.test)) == list(range(1, 81))
    together = sets[ALL_TASKS]
    assert len(together.train) + len(together.test) == 6 * 80
    recording = sets[COUNTS[0]]
    assert [row.output_tokens for row in recording.test] == list(range(61, 81))
    assert len(recording.train) == 60
    alpaca = (*sets["alpaca_eval"].train, *sets["alpaca_eval"].test)
    assert sorted(row.output_tokens for row in alpaca) == list(range(1, 81))


def test_a_set_is_cut_to_the_rows_asked_for(tmp_path: Path) -> None:
    write_folder(tmp_path, rows=80)
    for data in load_sets(tmp_path, rows=20):
        limit = 6 * 20 if data.name == ALL_TASKS else 20
        assert len(data.train) + len(data.test) <= limit


def test_what_others_reach_is_stated(tmp_path: Path) -> None:
    write_folder(tmp_path, rows=2)
    again, published = references(tmp_path).values()
    # |10 - 14| and |20 - 30|: 7 on average, of answers of 22.
    assert again == {"mae": 7.0, "mean_tokens": 22.0, "tau": 1.0}
    # Of three pairs two agree and one ties in class: 2 / sqrt(2 x 3).
    assert published["tau"] == pytest.approx(0.816)


@pytest.mark.slow
def test_the_whole_bench_writes_one_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_folder(tmp_path, rows=80)
    monkeypatch.setattr("sys.argv", ["length.py", "--json", "--data", str(tmp_path), "--encoders", "hash"])
    main()
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["data", "rows_a_set", "sets", "no_better_than_the_mean", "references"]
    assert found["data"] == "shared"
    with_text = found["sets"][0]["ways"]
    assert list(with_text) == [MEAN, APP_MEAN, LINEAR, INPUT_FOREST, HISTORY, "hash", "hash, rf"]
    assert list(with_text["hash"]) == ["mae", "rmse", "tau", "coverage", "encode_us", "predict_us"]


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data is not here")
def test_the_shared_data_is_counted_as_its_table_says() -> None:
    rows = list(texts(SHARED, "mt_en_zh"))
    assert len(rows) == 10435
    # The table's means: 43 pieces in, 34 out.
    assert round(np.mean([row.facts.num_prompt_tokens for row in rows])) == 43
    assert round(np.mean([row.output_tokens for row in rows])) == 34


def test_without_the_shared_data_the_demo_models_tasks_are_taken() -> None:
    try:
        sets = load_sets(None, rows=40)
    except ConfigError:
        pytest.skip("the demo model is not installed")
    assert sets[-1].name == ALL_TASKS
    assert len(sets) == 9
    for data in sets[:-1]:
        assert len(data.train) + len(data.test) == 40
        assert {row.facts.tenant for row in data.train} == {data.name}

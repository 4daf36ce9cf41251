"""The bench of predicted lengths: its own arithmetic, and a small instance of it on made data."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from bench.cost.length import (
    CHATS,
    COUNTS,
    INPUT,
    LEARNED,
    MAGNUS,
    MEDIAN,
    MIXED,
    QUESTIONS,
    REPORT,
    SHARED,
    TASKS,
    TUNE,
    WAYS,
    Answered,
    InputLength,
    RunningMedian,
    figures,
    judged,
    load_streams,
    main,
    texts,
)
from headway.core.length_estimate import LengthEstimate
from headway.predict.lengths.facts import RequestFacts

pytest.importorskip("lightgbm", reason="the paper's forest is LightGBM's")


def made(count: int) -> list[Answered]:
    """Answers twice as long as their inputs for one application, 5 tokens for the other."""
    chance = np.random.default_rng(2)
    rows = []
    for _ in range(count):
        words, doubles = int(chance.integers(10, 60)), bool(chance.integers(2))
        prompt = " ".join(
            ["say it twice:" if doubles else "sum it all up:", *map(str, chance.integers(100, size=words))]
        )
        rows.append(
            Answered("double" if doubles else "short", prompt, words + 3, 2 * words if doubles else 5)
        )
    return rows


def test_figures_by_hand() -> None:
    estimates = [LengthEstimate(10, 5, 20), LengthEstimate(20, 15, 30), LengthEstimate(30, 25, 40)]
    found = figures(estimates, [10, 40, 20], ([3.0, 1.0, 2.0], [4.0, 5.0, 6.0]))
    assert found.mae == (0 + 20 + 10) / 3
    assert found.coverage == 1 / 3
    assert found.tau == pytest.approx(1 / 3)  # two pairs of three in order
    # 0.1 x 5 + 0 + 0.1 x 10; 0.1 x 25 + 0.5 x 20 + 0.9 x 10; 0.9 x 5 + 0.5 x 10 + 0.1 x 20; each over 3.
    assert found.pinball == pytest.approx((1.5 + 21.5 + 11.5) / 9)
    assert (found.predict_us, found.observe_us) == (2.0, 5.0)


def test_the_simple_ways_by_hand() -> None:
    def of(application: str, prompt: int) -> RequestFacts:
        return RequestFacts(num_prompt_tokens=prompt, max_output_tokens=100, tenant=application)

    median, line = RunningMedian(), InputLength()
    assert median.predict(of("a", 1)) is None
    for application, prompt, tokens in (("a", 1, 3), ("a", 10, 30), ("a", 100, 300), ("b", 5, 7)):
        for way in (median, line):
            way.observe(of(application, prompt), tokens)
    said = {name: median.predict(of(name, 9)) for name in ("a", "b", "new")}
    assert [each and each.tokens for each in said.values()] == [30, 7, 18.5]
    # Three times the prompt, less what the slope of a line is held back by one part in eleven.
    assert line.predict(of("a", 10)).tokens == pytest.approx(30, rel=0.1)
    assert line.predict(of("a", 1000)).tokens > 1000


def test_every_way_learns_a_law_as_it_goes() -> None:
    stream = made(400)
    found = {way: judged(stream, make()) for way, make in WAYS.items()}
    assert max(found[LEARNED].mae, found[INPUT].mae) < 0.2 * found[MEDIAN].mae
    assert found[LEARNED].tau > 0.8
    assert 0.7 < found[LEARNED].coverage <= 1.0
    assert found[MAGNUS].mae < found[MEDIAN].mae
    assert judged(stream, WAYS[LEARNED](), tenants=False).mae < 0.5 * found[MEDIAN].mae


def write_folder(folder: Path, rows: int) -> None:
    """The shared data in small: two answers to every prompt, and recordings of rising lengths."""
    for sub in ("text", "lengths"):
        (folder / sub).mkdir()
    for name in (*TASKS, *QUESTIONS, *CHATS):
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


def test_a_folder_is_read_in_two_halves_of_prompts_that_come_once(tmp_path: Path) -> None:
    write_folder(tmp_path, rows=80)
    halves = [load_streams(tmp_path, 1000, half) for half in (TUNE, REPORT)]
    assert list(halves[0]) == [*TASKS, *CHATS, *QUESTIONS, *MIXED, "alpaca_eval", *COUNTS]
    prompts = [[row.prompt for row in half["text_detox"]] for half in halves]
    assert len(set(prompts[0]) | set(prompts[1])) == len(prompts[0]) + len(prompts[1]) == 40
    # "Do it." and "this 0", without or with "more" up to four times: three pieces and two to six.
    assert {row.prompt_tokens for row in halves[0]["text_detox"]} <= {5, 6, 7, 8, 9}
    assert len(halves[0]["all_tasks"]) == 6 * len(prompts[0])
    assert sum(len(half["alpaca_eval"]) for half in halves) == 80


@pytest.mark.slow
def test_the_whole_bench_writes_one_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_folder(tmp_path, rows=240)
    monkeypatch.setattr("sys.argv", ["length.py", "--json", "--data", str(tmp_path)])
    main()
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["data", "rows_a_stream", "half", "streams", "beaten", "mean", "repeated"]
    assert (found["data"], found["half"]) == ("shared", REPORT)
    assert list(found["streams"][0]["ways"]) == list(WAYS)
    # |10 - 14| and |20 - 30|: 7 on average, of answers of 22.
    assert found["repeated"] == {"mae": 7.0, "mean_tokens": 22.0, "tau": 1.0}


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data is not here")
def test_the_shared_data_is_counted_as_its_table_says() -> None:
    rows = list(texts(SHARED, "mt_en_zh"))
    assert len(rows) == 10435
    # The table's mean of answers: 34 pieces.
    assert round(np.mean([row.output_tokens for row in rows])) == 34


def test_without_the_shared_data_the_demo_models_tasks_are_taken() -> None:
    streams = load_streams(None, 40, REPORT)
    assert list(streams) == ["demo"]
    assert len(streams["demo"]) == 40
    assert len({row.application for row in streams["demo"]}) > 1

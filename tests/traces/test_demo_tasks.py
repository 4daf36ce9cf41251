"""Tasks of the demo model: the rules of their answers by worked examples, and what they have in common."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import ConfigError
from headway.traces.demo_apps import APPS, KALA, LONG_FORMS, MISSPELT, NOUNS, PLAINER, RUDE, spelled
from headway.traces.demo_tasks import (
    LENGTHS_SEED,
    demo_directory,
    demo_requests,
    demo_rows,
    demo_task,
    prompt_text,
)

EXAMPLES = [
    ("rewrite", "Anna purchases enormous lamps.", "Anna buys very big lamps."),
    (
        "rewrite",
        "Ben mends red hats near bells. Zoe discards tiny keys.",
        "Ben mends red hats near bells. Zoe throws out small keys.",
    ),
    ("expand", "mtg 12 pm", "meeting twelve after noon"),
    ("expand", "40 lamps asap w/o 2", "forty lamps as soon as possible without two"),
    ("list", "1 lines:\n1 keys", "1 find the keys and bring them back to us"),
    (
        "list",
        "2 lines:\n1 red lamps\n2 oars",
        "1 find the red lamps and bring them back to us\n2 find the oars and bring them back to us",
    ),
    ("sum", "1 lines:\n1 Anna paints old lamps.", "1 Anna"),
    ("sum", "2 lines:\n1 Ben hides wet keys\n2 Zoe sells old maps near tents.", "1 Ben\n2 Zoe"),
    ("correct", "2 lines:\n1 lmaps\n2 doors", "1 lamps\n2 is right"),
    # Lamps are noun 1: 389, syllables 3, 8 and 9. Apples are noun 5: 5 * 389 = 1945, of which 945.
    ("translate", "2 lines:\n1 lamps\n2 apples", "1 lo vo gu\n2 gu su ra"),
    ("translate", "1 lines:\n1 gu su ra", "1 apples"),
    ("comment", "1 lines:\n1 keys = maps + 1", "1 let keys be one more than maps"),
    (
        "comment",
        "3 lines:\n1 while keys < maps:\n2 oars += 1\n3 return hats",
        "1 again and again as long as keys is less than maps\n2 count oars up\n3 give back hats",
    ),
    ("detox", "Anna stupid paints filthy lousy old lamps.", "Anna paints old lamps."),
    ("detox", "Ben mends red hats.", "Ben mends red hats."),
]

apps = st.sampled_from(tuple(APPS))
numbers = st.integers(0, 10**6)


@pytest.mark.parametrize(("app", "given_text", "expected"), EXAMPLES)
def test_answers_follow_from_the_input(app: str, given_text: str, expected: str) -> None:
    assert APPS[app].answer(given_text) == expected


def test_every_application_has_an_example_and_an_instruction_of_its_own() -> None:
    assert {app for app, _, _ in EXAMPLES} == set(APPS)
    assert len({app.instruction for app in APPS.values()}) == len(APPS) == 8


@given(app=apps, number=numbers, seed=st.integers(0, 100))
def test_a_task_is_always_the_same_and_its_answer_is_the_rules(app: str, number: int, seed: int) -> None:
    task = demo_task(app, number, seed)
    assert task == demo_task(app, number, seed)
    assert (task.app, task.instruction) == (app, APPS[app].instruction)
    assert task.answer == APPS[app].answer(task.input)
    assert task.input.strip() == task.input != ""
    assert task.answer.strip() == task.answer != ""


@given(number=numbers)
def test_copied_text_has_no_word_that_it_must_not_have(number: int) -> None:
    assert not set(demo_task("detox", number, 0).answer.split()) & set(RUDE)
    assert not set(demo_task("rewrite", number, 0).answer.split()) & set(PLAINER)
    assert not set(demo_task("expand", number, 0).answer.split()) & set(LONG_FORMS)


@given(number=numbers)
def test_a_translation_translated_back_is_the_text(number: int) -> None:
    task = demo_task("translate", number, 0)
    lines = task.input.partition("\n")[0]
    assert APPS["translate"].answer(f"{lines}\n{task.answer}") == task.input.partition("\n")[2]


def test_other_numbers_and_seeds_give_other_tasks() -> None:
    inputs = [demo_task("detox", number, seed).input for number in range(100) for seed in (0, 1)]
    assert len(set(inputs)) == 200


def test_inputs_have_the_mean_number_of_parts_and_never_more_than_the_most() -> None:
    lines = [int(demo_task("correct", number, 0).input.split()[0]) for number in range(3000)]
    # Geometric, 1 + 1 / (e^(1/14) - 1) = 14.5 on average. One in 35 is above 50, there 64.5 on average, and drawn
    # again for 25.5: 14.5 - (64.5 - 25.5) / 35 = 13.4. The mean's own error is 0.2.
    assert 12.6 < sum(lines) / len(lines) < 14.2
    assert min(lines) == 1
    assert 45 < max(lines) <= 50


@given(app=st.sampled_from(("list", "sum", "correct", "translate", "comment")), number=numbers)
def test_numbered_answers_have_a_line_for_each_that_the_input_counts(app: str, number: int) -> None:
    task = demo_task(app, number, 0)
    lines = task.answer.split("\n")
    assert task.input.split("\n")[0] == f"{len(lines)} lines:"
    assert [line.partition(" ")[0] for line in lines] == [str(place + 1) for place in range(len(lines))]
    assert len(lines) <= APPS[app].most_parts


def test_the_tables_can_be_read_backwards() -> None:
    assert len(set(KALA.values())) == len(KALA) == len(NOUNS)
    assert not set(MISSPELT) & set(NOUNS)
    assert len(MISSPELT) > 50
    assert not set(KALA) & set(KALA.values())


@pytest.mark.parametrize(
    ("number", "words"),
    [(0, "zero"), (13, "thirteen"), (20, "twenty"), (47, "forty seven"), (99, "ninety nine")],
)
def test_numbers_are_spelled(number: int, words: str) -> None:
    assert spelled(number) == words


def test_an_unknown_application_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown application 'poetry'; accepted: rewrite, expand"):
        demo_task("poetry", 0, 0)


# ---- the packaged lengths ----------------------------------------------------------------------------


def test_rows_are_the_tasks_of_their_seed_with_real_lengths() -> None:
    rows = demo_rows()
    each = len(rows) // len(APPS)
    assert each >= 400
    for index, app in enumerate(APPS):
        own = rows[index * each : (index + 1) * each]
        assert {row.app for row in own} == {app}
        for number in (0, each // 2, each - 1):
            task = demo_task(app, number, LENGTHS_SEED)
            assert (own[number].instruction, own[number].user_input) == (task.instruction, task.input)
    assert all(1 <= row.output_tokens <= 1024 for row in rows)
    assert sum(row.output_tokens == 1024 for row in rows) < 0.03 * len(rows)  # the others ended by themselves


def test_prompt_tokens_are_those_of_the_packaged_tokenizer() -> None:
    tokenizer = pytest.importorskip("tokenizers").Tokenizer.from_file(
        str(demo_directory() / "tokenizer.json")
    )
    for row in demo_rows()[::400]:
        ids = tokenizer.encode(prompt_text(row.instruction, row.user_input)).ids
        assert len(ids) == row.num_prompt_tokens


def test_what_is_packaged_is_small() -> None:
    assert sum(path.stat().st_size for path in demo_directory().iterdir() if path.is_file()) < 10_000_000
    assert (demo_directory() / "lengths.csv.gz").stat().st_size < 100_000


def test_a_trace_has_prompts_and_real_lengths() -> None:
    by_prompt = {prompt_text(row.instruction, row.user_input): row for row in demo_rows()}
    trace = demo_requests(2000, rate_rps=5.0, seed=3)
    assert trace == demo_requests(2000, rate_rps=5.0, seed=3)
    assert [request.id for request in trace] == [str(number) for number in range(2000)]
    assert trace[0].arrival_s == 0.0
    # 1,999 intervals of mean 0.2 s: 399.8 s, give or take 9.
    assert trace[-1].arrival_s == pytest.approx(399.8, abs=45)
    for request in trace:
        row = by_prompt[request.prompt or ""]
        assert (request.tenant, request.input_tokens) == (row.app, row.num_prompt_tokens)
    assert {request.tenant for request in trace} == set(APPS)


def test_no_task_comes_twice_and_another_seed_draws_others() -> None:
    everything = demo_requests(len(demo_rows()), rate_rps=1.0)
    assert sorted(request.output_tokens for request in everything) == sorted(
        row.output_tokens for row in demo_rows()
    )
    first, other = demo_requests(50, 1.0, seed=0), demo_requests(50, 1.0, seed=1)
    assert [request.prompt for request in first] != [request.prompt for request in other]


@pytest.mark.parametrize(
    ("count", "rate_rps", "seed", "said"),
    [
        (0, 1.0, 0, "count is 0; accepted: 1 to "),
        (10**6, 1.0, 0, "count is 1000000; accepted: 1 to "),
        (5, 0.0, 0, "rate_rps is 0.0"),
        (5, 1.0, -1, "seed is -1; accepted: 0 or more"),
    ],
)
def test_a_trace_that_cannot_be_is_refused(count: int, rate_rps: float, seed: int, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        demo_requests(count, rate_rps, seed)


def test_a_package_without_the_model_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import headway

    monkeypatch.setattr(headway, "__file__", str(tmp_path / "site" / "headway" / "__init__.py"))
    with pytest.raises(ConfigError, match=r"the demo model is neither in .*site/headway/models/demo nor in"):
        demo_directory()

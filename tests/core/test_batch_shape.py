from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.batch_shape import BatchShape, StepKind, padded_shape_of, shape_of
from headway.core.job import Job
from tests.predict.shapes import batch


@given(st.lists(st.tuples(st.integers(1, 600), st.integers(0, 5000))))
def test_a_steps_shape_is_that_of_its_jobs_counted_in_one_by_one(grants: list[tuple[int, int]]) -> None:
    expected, tokens = BatchShape(), {}
    for number, (new_tokens, context_tokens) in enumerate(grants):
        job = Job(id=str(number), arrival_s=0.0, num_prompt_tokens=1, max_output_tokens=1)
        job.num_computed_tokens = context_tokens + new_tokens
        tokens[job] = new_tokens
        expected.add(new_tokens, context_tokens)
    assert shape_of(tokens) == expected


@pytest.mark.parametrize(
    ("jobs", "kind"),
    [
        ([(64, 0)], StepKind.PREFILL),
        ([(1, 9), (1, 3)], StepKind.DECODE),
        ([(1, 9), (64, 0)], StepKind.MIXED),
        ([], StepKind.DECODE),
    ],
)
def test_a_step_is_of_the_kind_its_jobs_are(jobs: list[tuple[int, int]], kind: StepKind) -> None:
    assert batch(*jobs).kind is kind


def granted(*tokens: int) -> dict[Job, int]:
    """A step that grants jobs without context so many tokens, which count as computed already."""
    return {
        Job(
            id=str(number),
            arrival_s=0.0,
            num_prompt_tokens=count,
            max_output_tokens=1,
            num_computed_tokens=count,
        ): count
        for number, count in enumerate(tokens)
    }


def test_padded_prompts_cost_as_many_as_the_longest_by_hand() -> None:
    # Prompts of 3 and 1 tokens, computed as 3 each: 6 tokens, and 3 x 4 / 2 = 6 pairs for each.
    assert padded_shape_of(granted(3, 1)) == BatchShape(
        num_jobs=2, num_tokens=6, prefill_context_tokens=6, prefill_pairs=12.0
    )


def test_decodes_and_prompts_of_one_length_are_not_padded() -> None:
    for step in (granted(1, 1, 1), granted(4, 4), {}):
        assert padded_shape_of(step) == shape_of(step)

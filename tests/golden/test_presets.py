"""Each preset's records of one small workload; `make golden` rewrites them, and the diff is reviewed."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from headway.core.job import Job
from headway.core.length_estimate import LengthEstimate
from headway.core.record import Outcome, Record
from headway.core.slo import Slo
from headway.policies.policy import Policy
from headway.policies.presets import PRESETS, build_policy
from headway.policies.protocols import Governing, Predicting
from headway.results.records import encode_record
from tests.policies.instance import Instance, LinearCost, small_engine

JOBS = 24
ENGINE = small_engine(num_blocks=15, max_num_batched_tokens=24, host_blocks=12)
NARROW = replace(ENGINE, batch_width=2)
"""With more seats than a batch has places, for those that pause."""
NEVER_PREEMPTED = ("orca", "static", "fastertransformer", "predicted")
"""By what they set aside: room for every limit, or, as far as this workload goes, by prediction."""
SWAPPING = (
    "adaptivellm",
    "adaptivellm-prompt",
    "vllm-s",
    "vllm-s-fallback",
    "adaptivellm-plus",
    "headway",
    "fastserve",
    "fastserve-v3",
    "fastserve-artifact",
    "fastserve-fcfs",
    "fixed-priority",
)
NEVER_RECOMPUTED = ("vllm-s",)
ALIKE = [("static", "fastertransformer"), ("vllm", "priority")]
"""Rows of one policy under two names, and one that only differs for requests with priorities."""


def workload() -> tuple[list[Job], dict[str, int]]:
    """Arrivals over 30 s, prompts of 1 to 30 tokens, answers of 1 to 12, half with a target of 5 to 20 s."""
    rng = random.Random(7)
    arrivals_s = sorted(rng.randint(0, 30) for _ in range(JOBS))
    jobs = [
        Job(
            id=f"{number:02}",
            arrival_s=float(arrival_s),
            num_prompt_tokens=rng.randint(1, 30),
            max_output_tokens=16,
            slo=Slo(ttft_s=float(rng.randint(5, 20))) if rng.random() < 0.5 else Slo(),
            may_move=True,
        )
        for number, arrival_s in enumerate(arrivals_s)
    ]
    return jobs, {job.id: rng.randint(1, 12) for job in jobs}


def predict(policy: Policy, jobs: list[Job], true_output: dict[str, int]) -> None:
    """Give three jobs in four a predicted length, up to twice too much or little, for policies that use
    predictions; report that the predictions hold.
    """
    if not isinstance(policy.order, Predicting):
        return
    rng = random.Random(8)
    for job in jobs:
        factor = 2 ** rng.uniform(-1, 1)
        if rng.random() < 0.75:
            job.predicted_length = LengthEstimate.around(max(1.0, round(true_output[job.id] * factor, 2)))
    if isinstance(policy.order, Governing):
        for tokens in range(10, 60):
            policy.order.quality.observe(LengthEstimate.around(float(tokens)), tokens)
        assert policy.order.trusts_predictions


def run(preset: str) -> tuple[list[Record], dict[str, int]]:
    """Records in the order jobs ended, and how long each answer was to be."""
    jobs, true_output = workload()
    engine = NARROW if PRESETS[preset].batching.startswith("top-jobs") else ENGINE
    policy = build_policy(PRESETS[preset], LinearCost())
    predict(policy, jobs, true_output)
    instance = Instance(policy, true_output, engine)
    pending = list(jobs)
    while pending or instance.ledger.live:
        while pending and pending[0].arrival_s <= instance.now_s:
            instance.arrive(pending.pop(0))
        instance.step()
        assert instance.now_s < 1_000, "the workload does not drain"
    return list(instance.records.values()), true_output


@pytest.mark.parametrize("preset", PRESETS)
def test_records_are_the_stored_ones(preset: str, pytestconfig: pytest.Config) -> None:
    records, _ = run(preset)
    lines = b"".join(encode_record(record) + b"\n" for record in records)
    stored = Path(__file__).with_name(f"{preset}.jsonl")
    if pytestconfig.getoption("--rewrite-golden"):
        stored.write_bytes(lines)
    assert lines == stored.read_bytes(), f"{preset} decides differently; if that is meant, `make golden`"


def test_every_stored_file_is_of_a_preset() -> None:
    assert {path.stem for path in Path(__file__).parent.glob("*.jsonl")} == set(PRESETS)


@pytest.mark.parametrize("preset", [name for name, row in PRESETS.items() if not row.leaving])
def test_whatever_the_order_all_work_is_done(preset: str) -> None:
    records, true_output = run(preset)
    assert {record.id: record.output_tokens for record in records} == true_output
    assert {record.outcome for record in records} == {Outcome.FINISHED}
    preemptions = sum(record.preemptions for record in records)
    assert (preemptions == 0) == (preset in NEVER_PREEMPTED)
    assert any(record.swapped_blocks for record in records) == (preset in SWAPPING)
    if preset in NEVER_RECOMPUTED:
        assert not any(record.recomputed_tokens for record in records)


@pytest.mark.parametrize(
    "preset", [name for name, row in PRESETS.items() if row.leaving and "out-of-memory" not in row.leaving]
)
def test_who_leaves_has_done_nothing_and_all_others_are_done(preset: str) -> None:
    records, true_output = run(preset)
    hands_off = any(rule.startswith("at-risk") for rule in PRESETS[preset].leaving)
    leave_as = Outcome.HANDED_OFF if hands_off else Outcome.EXPIRED
    assert {record.outcome for record in records} == {Outcome.FINISHED, leave_as}
    for record in records:
        finished = record.outcome is Outcome.FINISHED
        assert record.output_tokens == (true_output[record.id] if finished else 0)
        assert finished or record.first_token_s is None
        assert finished or record.outcome is Outcome.EXPIRED or record.first_scheduled_s is None
        if record.outcome is Outcome.EXPIRED:
            assert record.finished_s is not None
            assert record.slo.ttft_s is not None
            assert record.finished_s > record.arrival_s + record.slo.ttft_s


@pytest.mark.parametrize(("one", "other"), ALIKE)
def test_rows_that_mean_the_same_do_the_same(one: str, other: str) -> None:
    assert run(one) == run(other)

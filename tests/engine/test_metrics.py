from __future__ import annotations

from abc import abstractmethod
from runpy import run_path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import REGISTRY
from vllm.v1.metrics import loggers
from vllm.v1.metrics.loggers import AggregateStatLoggerBase
from vllm.v1.metrics.stats import SchedulerStats

from headway.core.plan import Departure, Reason
from headway.engine import HeadwayScheduler
from headway.engine.model_free import headway_builder, make_scheduler, replay
from headway.engine.step.counters import Counters
from headway.engine.vllm import metrics
from headway.engine.vllm.metrics import PREFIX, HeadwayStatLogger
from tests.engine.scripts import HearingEngine, scheduler, stream

pytestmark = pytest.mark.vllm

NOT_A_TOTAL = {
    "scheduler_us": "headway_scheduler_seconds_total",
    "vllm_schedule_us": "headway_vllm_schedule_seconds_total",
    "follow_us": "headway_follow_seconds_total",
}


def config(scheduler: object = None, **additional: object) -> SimpleNamespace:
    """The part of vLLM's configuration that a stat logger reads."""
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(scheduler_cls=scheduler), additional_config=additional
    )


def logger() -> HeadwayStatLogger:
    return HeadwayStatLogger(config("headway.engine.HeadwayScheduler"), [0])


def named(policy: str) -> float | None:
    return REGISTRY.get_sample_value("headway_policy", {"policy": policy})


def test_a_fresh_server_tells_whose_scheduler_it_has() -> None:
    HeadwayStatLogger(config("vllm.v1.core.sched.scheduler.Scheduler", headway={"policy": "edf"}), [0])
    assert named("edf") is None
    HeadwayStatLogger(config("headway.engine.HeadwayScheduler", headway={"policy": "sjf"}), [0])
    HeadwayStatLogger(config(HeadwayScheduler, headway={"policy": "hrrn"}), [0])
    assert (named("sjf"), named("hrrn")) == (1, 1)


def carrying(**grown: int) -> SchedulerStats:
    """vLLM's statistics as a scheduler of ours sends them; `__` stands for the dot before a reason."""
    carried = {f"{PREFIX}{name.replace('__', '.')}": value for name, value in grown.items()}
    return SchedulerStats(num_kv_fetch_reqs_by_stage=carried)


def sample(name: str, engine: int, **labels: str) -> float:
    """A counter's value on /metrics, 0 where it is not there."""
    return REGISTRY.get_sample_value(name, {"engine": str(engine), **labels}) or 0.0


def of_total(name: str, engine: int) -> float:
    """The value on /metrics of a total of `Counters`, by its flat name."""
    kind, _, reason = name.partition(".")
    if reason:
        return sample(f"headway_{kind}_total", engine, reason=reason)
    if name in NOT_A_TOTAL:
        return sample(NOT_A_TOTAL[name], engine) * 1e6
    return sample(f"headway_{name}_total", engine)


@pytest.fixture
def engine() -> int:
    """An engine of which nothing has been counted yet: the registry is the process's one."""
    used = {
        int(point.labels["engine"])
        for metric in REGISTRY.collect()
        if metric.name.startswith("headway_")
        for point in metric.samples
        if "engine" in point.labels  # those of predicted lengths are an API server's
    }
    return max(used, default=-1) + 1


def test_vllm_accepts_it_as_a_logger() -> None:
    assert issubclass(HeadwayStatLogger, AggregateStatLoggerBase)
    logger().log_engine_initialized()


def test_beside_stock_it_does_nothing_whatever_vllm_has_become(monkeypatch: pytest.MonkeyPatch) -> None:
    class Demanding(AggregateStatLoggerBase):  # type: ignore[misc]
        @abstractmethod
        def record_more(self) -> None: ...

    monkeypatch.setattr(loggers, "AggregateStatLoggerBase", Demanding)
    later = run_path(str(metrics.__file__))["HeadwayStatLogger"]
    beside = later(config("vllm.v1.core.sched.scheduler.Scheduler"), [0])
    beside.record(object(), None)  # statistics without what ours ride on


def test_times_are_seconds(engine: int) -> None:
    logger().record(carrying(scheduler_us=1_500_000, vllm_schedule_us=250), None, engine_idx=engine)
    assert sample("headway_scheduler_seconds_total", engine) == 1.5
    assert sample("headway_vllm_schedule_seconds_total", engine) == pytest.approx(0.00025)


def test_our_keys_are_taken_out_and_vllms_own_left() -> None:
    stats = carrying(steps=1, differences__blocks=1)
    stats.num_kv_fetch_reqs_by_stage["waiting_to_start"] = 4
    logger().record(stats, None)
    assert stats.num_kv_fetch_reqs_by_stage == {"waiting_to_start": 4}


def test_a_second_logger_in_a_process_counts_on(engine: int) -> None:
    for _ in range(2):
        logger().record(carrying(steps=3), None, engine_idx=engine)
    assert sample("headway_steps_total", engine) == 6


@pytest.mark.parametrize(
    "stats", [None, SchedulerStats(), SchedulerStats(num_kv_fetch_reqs_by_stage={"x": 1})]
)
def test_without_headway_nothing_is_shown(stats: SchedulerStats | None, engine: int) -> None:
    def shown() -> list[tuple[str, int]]:
        return [
            (metric.name, len(metric.samples)) for metric in REGISTRY.collect() if "headway" in metric.name
        ]

    before = shown()
    logger().record(stats, None, engine_idx=engine)
    assert shown() == before


def test_every_total_is_known_to_the_logger(engine: int) -> None:
    counters = Counters(scheduler_s=1.0, vllm_schedule_s=1.0)
    counters.differences.update(Reason)
    counters.departures.update(Departure)
    told = counters.grown()
    stats = SchedulerStats(num_kv_fetch_reqs_by_stage={f"{PREFIX}{name}": told[name] for name in told})
    logger().record(stats, None, engine_idx=engine)
    assert {name: of_total(name, engine) for name in told} == told


def test_an_unknown_total_is_an_error() -> None:
    with pytest.raises(KeyError):
        logger().record(carrying(nonsense=1), None)


class ReportingEngine(HearingEngine):
    """A model-free engine whose statistics go to one front-end after another."""

    def __init__(self, built: Any, front_ends: list[HeadwayStatLogger], engine: int) -> None:
        super().__init__(built)
        self.front_ends, self.engine = front_ends, engine
        self.reports = 0

    def process_oldest(self) -> None:
        for outputs in self.scheduler.update_from_output(*self.next_output()).values():
            stats = outputs.scheduler_stats
            if stats is not None:
                front_end = self.front_ends[self.reports % len(self.front_ends)]
                self.reports += 1
                front_end.record(stats, None, engine_idx=self.engine)


def build_with_statistics(**arguments: Any) -> Any:
    return headway_builder(policy="sjf", batch_width=6)(**{**arguments, "log_stats": True})


@pytest.mark.parametrize("front_ends", [1, 3])
def test_a_schedulers_totals_arrive_whole_whoever_hears_of_them(front_ends: int, engine: int) -> None:
    built = make_scheduler(build_with_statistics, scheduler().vllm_config, 64)
    reporting = ReportingEngine(built, [logger() for _ in range(front_ends)], engine)
    for _ in replay(reporting, stream(40), 5_000):
        pass
    totals = built.counters.flat()
    assert totals["differences.seats"] > 0
    assert totals["steps"] == reporting.reports
    assert {name: of_total(name, engine) for name in totals} == pytest.approx(totals)


def test_without_statistics_nothing_is_made() -> None:
    assert scheduler().make_stats() is None

"""Writes a schedule as a Chrome trace, for ui.perfetto.dev or chrome://tracing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import msgspec

from headway.core.job import Job, is_decode
from headway.core.plan import StepOutcome
from headway.core.record import Outcome, Record
from headway.sim.watcher import ObservedStep

MAX_EVENTS = 1_000_000
"""Most events in a file: about 150 MB as text, which Perfetto still opens."""

_MICROS = 1e6
_DECIMALS = 3
_STEP_LANES_FROM = 1
_NAMED = 5  # request ids listed in a step's arguments


@dataclass(slots=True)
class _Life:
    """The phases of a live request, with the time at which each began."""

    phases: list[tuple[float, str]] = field(default_factory=list)

    def enter(self, phase: str, now_s: float) -> None:
        if not self.phases or self.phases[-1][1] != phase:
            self.phases.append((now_s, phase))


@dataclass(slots=True)
class _Instance:
    """What is remembered about an instance between steps."""

    lanes: int
    steps: int = 0
    free_from_s: list[float] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)


class ChromeTrace:
    """Writes a run as trace events while it runs; `close` ends the file.

    Each instance is a process: its steps on a track (on `lanes` tracks if steps overlap), its requests as nested
    asynchronous slices (waiting, prefill, decode, paused), and counters for the queue, the residents and the free KV
    blocks. `instances` are their names in order of display; a handed-off request is a slice at each instance. A step is
    drawn from the end of the one before, so that steps scheduled ahead do not overlap. After MAX_EVENTS nothing more is
    written; `cut_at_s` says from when. Times are in microseconds, as the format wants. Format: Trace Event Format,
    Google 2016.
    """

    def __init__(
        self,
        file: BinaryIO,
        *,
        title: str,
        instances: Sequence[str] = ("0",),
        lanes: int = 1,
        max_events: int = MAX_EVENTS,
    ) -> None:
        self.cut_at_s: float | None = None
        self.num_events = 0
        self._pids = {name: number for number, name in enumerate(instances)}
        self._came_s: dict[str, float] = {}
        self._file = file
        self._title = title
        self._lanes = lanes
        self._max_events = max_events
        self._instances: dict[str, _Instance] = {}
        self._lives: dict[str, _Life] = {}
        self._file.write(b'{"displayTimeUnit":"ms","traceEvents":[\n')

    def close(self) -> None:
        """End the JSON object; the file itself stays open."""
        self._file.write(b"\n]}\n")

    # ---- calls of the simulation -------------------------------------------------------------------

    def saw(self, sight: ObservedStep) -> None:
        """Note which requests run and pause, and the counters that changed."""
        outcome, now_s = sight.outcome, sight.outcome.now_s
        for job in outcome.preempted:
            self._life(job).enter("waiting", now_s)
        for job, tokens in outcome.tokens.items():
            self._life(job).enter("decode" if is_decode(job, tokens) else "prefill", now_s)
        residents = len(outcome.admitted)
        for job in sight.residents:
            if job not in outcome.preempted:
                residents += 1
                if job not in outcome.tokens:
                    self._life(job).enter("paused", now_s)
        counts = {
            "waiting": len(sight.view.waiting),
            "residents": residents,
            "free KV blocks": outcome.free_blocks,
        }
        self._count(sight.instance, now_s, counts)

    def stepped(self, instance: str, outcome: StepOutcome, started_s: float, finished_s: float) -> None:
        """Draw a step."""
        state = self._instance(instance, started_s)
        lane = state.steps % state.lanes
        state.steps += 1
        began_s = max(started_s, state.free_from_s[lane])
        state.free_from_s[lane] = finished_s
        prefills = sum(tokens for tokens in outcome.tokens.values() if tokens > 1)
        arguments: dict[str, Any] = {
            "requests": len(outcome.tokens),
            "tokens": outcome.num_tokens,
            "prefill tokens": prefills,
            "free KV blocks": outcome.free_blocks,
        }
        for name, jobs in (("admitted", outcome.admitted), ("preempted", list(outcome.preempted))):
            if jobs:
                arguments[name] = _ids(jobs)
        name = f"{outcome.num_tokens} tokens, {len(outcome.tokens)} requests"
        self._write(
            began_s,
            ph="X",
            name=name,
            cat="step",
            pid=self._pids[instance],
            tid=_STEP_LANES_FROM + lane,
            dur=_micros(finished_s - began_s),
            args=arguments,
        )

    def ended(self, record: Record) -> None:
        """Draw a request's whole life at the instance where it ends, or which it leaves."""
        life = self._lives.pop(record.id, _Life())
        came_s = self._came_s.pop(record.id, record.arrival_s)
        end_s = came_s if record.finished_s is None else record.finished_s
        if record.outcome is Outcome.HANDED_OFF:
            self._came_s[record.id] = end_s
        pid = self._pids[record.instance]
        self._instance(record.instance, came_s)
        arguments = {
            "prompt tokens": record.prompt_tokens,
            "output tokens": record.output_tokens,
            "preemptions": record.preemptions,
            "outcome": str(record.outcome),
        }
        common: dict[str, Any] = {"cat": "request", "id": record.id, "pid": pid, "tid": 0}
        name = f"request {record.id}"
        self._write(came_s, ph="b", name=name, args=arguments, **common)
        for phase, from_s, to_s in _spans(life, came_s, end_s):
            self._write(from_s, ph="b", name=phase, **common)
            self._write(to_s, ph="e", name=phase, **common)
        self._write(end_s, ph="e", name=name, **common)

    # ---- events ------------------------------------------------------------------------------------

    def _life(self, job: Job) -> _Life:
        return self._lives.setdefault(job.id, _Life())

    def _instance(self, name: str, now_s: float) -> _Instance:
        """What is known of an instance; names its tracks at its first event."""
        state = self._instances.get(name)
        if state is None:
            state = _Instance(self._lanes, free_from_s=[0.0] * self._lanes)
            self._instances[name] = state
            process = f"instance {name}: {self._title}"
            pid = self._pids[name]
            self._write(now_s, ph="M", name="process_name", pid=pid, args={"name": process})
            for lane in range(self._lanes):
                track = "steps" if self._lanes == 1 else f"steps, lane {lane + 1}"
                tid = _STEP_LANES_FROM + lane
                self._write(now_s, ph="M", name="thread_name", pid=pid, tid=tid, args={"name": track})
        return state

    def _count(self, instance: str, now_s: float, counts: dict[str, int]) -> None:
        state = self._instance(instance, now_s)
        for name, value in counts.items():
            if state.counters.get(name) != value:
                state.counters[name] = value
                self._write(now_s, ph="C", name=name, pid=self._pids[instance], args={name: value})

    def _write(self, time_s: float, **event: Any) -> None:
        if self.num_events >= self._max_events:
            self.cut_at_s = time_s if self.cut_at_s is None else min(self.cut_at_s, time_s)
            return
        self._file.write(b",\n" if self.num_events else b"")
        self._file.write(msgspec.json.encode({"ts": _micros(time_s), **event}))
        self.num_events += 1


def _spans(life: _Life, came_s: float, end_s: float) -> Iterator[tuple[str, float, float]]:
    """Yield the phases of a request's life, each with start and end, clipped to the rounded life."""
    changes = [(came_s, "waiting"), *life.phases]
    starts_s = [min(max(from_s, came_s), end_s) for from_s, _ in changes]
    for (_, phase), from_s, to_s in zip(changes, starts_s, [*starts_s[1:], end_s], strict=True):
        if to_s > from_s:
            yield phase, from_s, to_s


def _ids(jobs: list[Job]) -> str:
    more = f" and {len(jobs) - _NAMED} more" if len(jobs) > _NAMED else ""
    return ", ".join(job.id for job in jobs[:_NAMED]) + more


def _micros(seconds: float) -> float:
    return round(seconds * _MICROS, _DECIMALS)

"""Engines in processes of their own that take turns, so that compared runs meet the same machine."""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from itertools import cycle, groupby, islice
from multiprocessing import get_context
from multiprocessing.connection import Connection
from signal import SIGCONT, SIGSTOP, Signals
from threading import Thread
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from headway.lab.real_engine import EngineClock
from headway.statistics import mean

# ---- a clock of an engine's own ------------------------------------------------------------------------

TURN_S = 0.1
"""Of an engine's own time: long beside what it costs to find the caches full of another's weights, short beside what
a machine's speed takes to change.
"""


class TurnTime:
    """An engine's own: what it has worked, and the times between requests, which it does not wait for.

    The holder of the turn works, the others stand still, and no clock but its own goes on. So engines that serve the
    same stream are compared within tenths of a second, whatever the machine's speed does from one second to the next.
    A turn is TURN_S or a step, whichever is longer; `turns` brings each, and is told at its end whether this engine
    wants more. Its worker processes are stopped meanwhile: vLLM's look for work without a rest for a second after the
    last. Used as a context: what is done before and after the stream needs the turn too. While the machine's clock
    goes on by a second this one goes on by `speed`: half of one where the machine has become half as fast.
    """

    def __init__(self, turns: Connection, worker_pids: Sequence[int], speed: float = 1.0) -> None:
        self.speed = speed
        self._turns = turns
        self._worker_pids = worker_pids
        self._origin_s = 0.0
        self._turn_ends_s = 0.0

    def __enter__(self) -> Self:
        """Wait for the first turn."""
        self._turns.recv()
        return self

    def __exit__(self, *error: object) -> None:
        """Leave the rest to the others."""
        self._turns.send(False)

    def begin(self) -> None:
        """The stream begins now."""
        self._origin_s = time.perf_counter()
        self._turn_ends_s = TURN_S

    def now_s(self) -> float:
        """Seconds of the stream, the others' turns left out."""
        return (time.perf_counter() - self._origin_s) * self.speed

    def idle(self, until_s: float) -> None:
        """It is then at once."""
        skipped_s = max(0.0, until_s - self.now_s())
        self._origin_s -= skipped_s / self.speed
        self._turn_ends_s += skipped_s

    def stepped(self) -> None:
        """A step is over, and perhaps the turn."""
        now_s = self.now_s()
        if now_s < self._turn_ends_s:
            return
        signal_all(self._worker_pids, SIGSTOP)
        self._turns.send(True)
        self._turns.recv()
        signal_all(self._worker_pids, SIGCONT)
        self._origin_s = time.perf_counter() - now_s / self.speed
        self._turn_ends_s = now_s + TURN_S


def signal_all(pids: Iterable[int], signal: Signals) -> None:
    """Send a signal to those of the processes that are left."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal)


# ---- an engine in a process of its own ---------------------------------------------------------------


class HasWorkers(Protocol):
    """An engine of this process, whose workers are stopped while it has no turn."""

    @property
    def worker_pids(self) -> list[int]:
        """Their processes."""


_Engine = TypeVar("_Engine", bound=HasWorkers)
_Engine_co = TypeVar("_Engine_co", bound=HasWorkers, covariant=True)
_Found = TypeVar("_Found")
Work = Callable[[_Engine, EngineClock], _Found]
"""A run: what an engine does by a clock of its own, and what came of it. Goes to the engine's process and back."""


class EngineKind(Protocol[_Engine_co]):
    """Which engine: equal ones do for each other."""

    def __hash__(self) -> int:
        """Of what makes it equal to others."""

    def serving(self) -> AbstractContextManager[_Engine_co]:
        """A warm engine."""


class EngineProcess:
    """A warm engine that does one run at a time and works in its turn."""

    def __init__(self, kind: EngineKind[Any]) -> None:
        context = get_context("spawn")
        self._turns, self._theirs = context.Pipe()
        self._process = ProcessPoolExecutor(
            max_workers=1,
            mp_context=context,
            initializer=_start,
            initargs=(kind, os.getpid(), self._theirs),
        )

    def begin(self, work: Work[Any, _Found], speed: float = 1.0) -> Future[_Found]:
        """Start a run, which goes on turn by turn; `speed` as `TurnTime` has it."""
        return self._process.submit(_do, work, speed)

    def turn(self) -> bool:
        """Let it work on its run for a turn; whether it wants more: not when the run is over, or it has died."""
        try:
            self._turns.send(None)
            goes_on: bool = self._turns.recv()
        except (EOFError, OSError):
            return False
        return goes_on

    def __enter__(self) -> Self:
        """Once the engine has started."""
        self._process.submit(_started).result()
        self._theirs.close()  # so that the end of the process is the end of the pipe
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the engine and its process."""
        with suppress(BrokenProcessPool):  # it has died, which its caller has heard
            self._process.submit(_stop).result()
        self._process.shutdown()


def do_in_turn(
    engines: Sequence[EngineProcess], works: Sequence[Work[Any, _Found]], speed: float = 1.0
) -> list[Future[_Found]]:
    """Do runs, each on its own engine, at the same pace of the machine; all have ended, well or not."""
    begun = [engine.begin(work, speed) for engine, work in zip(engines, works, strict=True)]
    working = list(engines)
    while working:
        working = [engine for engine in working if engine.turn()]
    wait(begun)
    return begun


# ---- in the process ------------------------------------------------------------------------------------

_own = ExitStack()
"""Holds the process's one engine."""
_engines: list[HasWorkers] = []
_turns: list[Connection] = []


def _start(kind: EngineKind[Any], parent_pid: int, turns: Connection) -> None:
    Thread(target=_end_with, args=(parent_pid,), daemon=True).start()
    _engines.append(_own.enter_context(kind.serving()))
    _turns.append(turns)


def _end_with(parent_pid: int) -> None:
    """A bench that is killed leaves no engine behind; the engine's own processes end with this one."""
    while os.getppid() == parent_pid:
        time.sleep(1)
    for engine in _engines:
        signal_all(engine.worker_pids, SIGCONT)
    os._exit(1)


def _started() -> None:
    """Nothing but to be answered."""


def _stop() -> None:
    _own.close()


def _do(work: Work[Any, _Found], speed: float) -> _Found:
    with TurnTime(_turns[0], _engines[0].worker_pids, speed) as clock:
        return work(_engines[0], clock)


MOST_TOGETHER = 16
"""Engines at once, as many as `headway_real.py --broken` compares; each takes a GB of memory and more. Of more runs
that are compared the others come after them, and what differs then may be the machine."""
_GAUGED = 2
_Run = TypeVar("_Run")


@dataclass(frozen=True, slots=True)
class Lane(Generic[_Engine, _Found]):
    """One run: on which engine, what it does, and what keeps the result."""

    engine: EngineKind[_Engine]
    work: Work[_Engine, _Found]
    keep: Callable[[_Found], None]


@dataclass(frozen=True, slots=True)
class Gauge(Generic[_Engine]):
    """What says how fast the machine is now: work of an engine, and its rate, by any unit, when it was first done.

    Loads and targets were set by the machine as it was then; it may be half as fast, or twice, an hour later.
    """

    engine: EngineKind[_Engine]
    work: Work[_Engine, float]
    first_rate: float

    def speed(self, engines: Sequence[EngineProcess]) -> float:
        """How many times as fast the machine is as it was, by the last two of these engines in turn."""
        chosen = engines[-_GAUGED:]
        return mean(run.result() for run in do_in_turn(chosen, [self.work] * len(chosen))) / self.first_rate


def compared(runs: Iterable[_Run], by: Callable[[_Run], Any]) -> list[list[_Run]]:
    """The runs that are equal in `by`, MOST_TOGETHER at a time."""
    cells = [list(cell) for _, cell in groupby(sorted(runs, key=by), key=by)]
    return [cell[at : at + MOST_TOGETHER] for cell in cells for at in range(0, len(cell), MOST_TOGETHER)]


def measure_side_by_side(
    groups: Sequence[Sequence[Lane[Any, Any]]], say: Callable[[str], None], gauge: Gauge[Any] | None = None
) -> None:
    """Do all runs, those of a group in turns of a tenth of a second.

    A machine's speed drifts by a quarter within minutes, so what is compared works side by side, and each engine goes
    by its own time (`TurnTime`). Engines are started when a group first needs them, and serve all groups; equal ones
    change places from group to group: in some virtual machines the first of many processes is slower than the last.
    With a `gauge` the machine's speed is taken before each group, and clocks go by it.
    """
    with ExitStack() as stack:
        engines: dict[EngineKind[Any], list[EngineProcess]] = defaultdict(list)
        for number, group in enumerate(groups):
            at_once = Counter(lane.engine for lane in group)
            if gauge is not None:
                at_once[gauge.engine] = max(1, at_once[gauge.engine])
            for kind, count in at_once.items():
                while len(engines[kind]) < count:
                    engines[kind].append(stack.enter_context(EngineProcess(kind)))
            speed = 1.0 if gauge is None else gauge.speed(engines[gauge.engine])
            _measure_together(group, placed(group, engines, number), speed)
            at_speed = "" if gauge is None else f", the machine {speed:.2f} times as fast as it was"
            say(f"{number + 1} of {len(groups)} groups of runs done{at_speed}")


def placed(
    group: Sequence[Lane[Any, Any]], engines: Mapping[EngineKind[Any], Sequence[EngineProcess]], number: int
) -> list[EngineProcess]:
    """Which engine each lane of the `number`-th group has: of equal ones the next to that of the group before."""
    free = {kind: islice(cycle(pool), number % len(pool), None) for kind, pool in engines.items()}
    return [next(free[lane.engine]) for lane in group]


def _measure_together(
    group: Sequence[Lane[Any, Any]], engines: Sequence[EngineProcess], speed: float
) -> None:
    ended = zip(group, do_in_turn(engines, [lane.work for lane in group], speed), strict=True)
    # One that failed is heard of when the others are kept.
    for lane, run in sorted(ended, key=lambda each: each[1].exception() is not None):
        lane.keep(run.result())

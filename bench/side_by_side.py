"""Engines in processes of their own that take turns, so that compared runs meet the same machine speed."""

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
"""Length of a turn in an engine's own time: long beside the cost of caches full of another's weights, short beside
the time in which a machine's speed changes.
"""


class TurnTime:
    """An engine's own clock: it advances while the engine works, and jumps over the times between requests.

    The holder of the turn works while the others stand still, and only its own clock advances. So engines that serve
    the same stream are compared within tenths of a second, whatever the machine's speed does from one second to the
    next. A turn is TURN_S or a step, whichever is longer; `turns` delivers each, and is told at its end whether this
    engine wants more. The engine's worker processes are stopped meanwhile, since vLLM's workers look for work without a
    rest for a second after the last. Used as a context: work before and after the stream needs the turn too. While the
    machine's clock advances by a second this one advances by `speed`: by half of one where the machine has become half
    as fast.
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
        """Give up the turn for good."""
        self._turns.send(False)

    def begin(self) -> None:
        """The stream begins now: set the clock to 0."""
        self._origin_s = time.perf_counter()
        self._turn_ends_s = TURN_S

    def now_s(self) -> float:
        """Seconds of the stream, without the others' turns."""
        return (time.perf_counter() - self._origin_s) * self.speed

    def idle(self, until_s: float) -> None:
        """Advance the clock to this time at once."""
        skipped_s = max(0.0, until_s - self.now_s())
        self._origin_s -= skipped_s / self.speed
        self._turn_ends_s += skipped_s

    def stepped(self) -> None:
        """Count a step as done, which may end the turn."""
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
        """The workers' process ids."""


_Engine = TypeVar("_Engine", bound=HasWorkers)
_Engine_co = TypeVar("_Engine_co", bound=HasWorkers, covariant=True)
_Found = TypeVar("_Found")
Work = Callable[[_Engine, EngineClock], _Found]
"""A run: serves on an engine by that engine's own clock and returns a result. Sent to the engine's process and back."""


class EngineKind(Protocol[_Engine_co]):
    """A specification of an engine: equal ones are interchangeable."""

    def __hash__(self) -> int:
        """Consistent with equality."""

    def serving(self) -> AbstractContextManager[_Engine_co]:
        """Start a warm engine."""


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
        """Start a run, which goes on turn by turn; `speed` is as in `TurnTime`."""
        return self._process.submit(_do, work, speed)

    def turn(self) -> bool:
        """Let it work on its run for a turn; return whether it wants more: not when the run is over, or it has died."""
        try:
            self._turns.send(None)
            goes_on: bool = self._turns.recv()
        except (EOFError, OSError):
            return False
        return goes_on

    def __enter__(self) -> Self:
        """Wait until the engine has started."""
        self._process.submit(_started).result()
        self._theirs.close()  # so that the end of the process is the end of the pipe
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the engine and its process."""
        with suppress(BrokenProcessPool):  # its caller has heard that it died
            self._process.submit(_stop).result()
        self._process.shutdown()


def do_in_turn(
    engines: Sequence[EngineProcess], works: Sequence[Work[Any, _Found]], speed: float = 1.0
) -> list[Future[_Found]]:
    """Do runs, each on its own engine, at the same machine speed; return once all have ended, well or not."""
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
    """End this process when the bench ends, so that a killed bench leaves no engine behind; the engine's own
    processes end with this one.
    """
    while os.getppid() == parent_pid:
        time.sleep(1)
    for engine in _engines:
        signal_all(engine.worker_pids, SIGCONT)
    os._exit(1)


def _started() -> None:
    """Do nothing: an answer shows that the process has started."""


def _stop() -> None:
    _own.close()


def _do(work: Work[Any, _Found], speed: float) -> _Found:
    with TurnTime(_turns[0], _engines[0].worker_pids, speed) as clock:
        return work(_engines[0], clock)


MOST_TOGETHER = 16
"""Most engines at once, as many as `headway_real.py --broken` compares; each takes at least a GB of memory. With
more compared runs the rest come after them, and a difference may then be the machine's.
"""
_GAUGED = 2
_Run = TypeVar("_Run")


@dataclass(frozen=True, slots=True)
class Lane(Generic[_Engine, _Found]):
    """One run: its engine, its work, and a function that keeps the result."""

    engine: EngineKind[_Engine]
    work: Work[_Engine, _Found]
    keep: Callable[[_Found], None]


@dataclass(frozen=True, slots=True)
class Gauge(Generic[_Engine]):
    """Measures the machine's speed now: some work of an engine, and its rate, in any unit, when it was first done.

    Loads and targets were set at the machine's speed of that time; an hour later it may be half or twice as fast.
    """

    engine: EngineKind[_Engine]
    work: Work[_Engine, float]
    first_rate: float

    def speed(self, engines: Sequence[EngineProcess]) -> float:
        """The machine's speed relative to then, measured with the last two of these engines in turn."""
        chosen = engines[-_GAUGED:]
        return mean(run.result() for run in do_in_turn(chosen, [self.work] * len(chosen))) / self.first_rate


def compared(runs: Iterable[_Run], by: Callable[[_Run], Any]) -> list[list[_Run]]:
    """The runs that are equal in `by`, at most MOST_TOGETHER at a time."""
    cells = [list(cell) for _, cell in groupby(sorted(runs, key=by), key=by)]
    return [cell[at : at + MOST_TOGETHER] for cell in cells for at in range(0, len(cell), MOST_TOGETHER)]


def measure_side_by_side(
    groups: Sequence[Sequence[Lane[Any, Any]]], say: Callable[[str], None], gauge: Gauge[Any] | None = None
) -> None:
    """Do all runs, those of a group in turns of a tenth of a second.

    A machine's speed drifts by a quarter within minutes, so compared runs work side by side, each by its own time
    (`TurnTime`). Engines are started when a group first needs them, and serve all groups; equal ones change places from
    group to group: in some virtual machines the first of many processes is slower than the last. With a `gauge` the
    machine's speed is measured before each group, and clocks follow it.
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
    """The engine of each lane of the `number`-th group: of equal ones, the next after that of the group before."""
    free = {kind: islice(cycle(pool), number % len(pool), None) for kind, pool in engines.items()}
    return [next(free[lane.engine]) for lane in group]


def _measure_together(
    group: Sequence[Lane[Any, Any]], engines: Sequence[EngineProcess], speed: float
) -> None:
    ended = zip(group, do_in_turn(engines, [lane.work for lane in group], speed), strict=True)
    # A failed run raises only after the others are kept.
    for lane, run in sorted(ended, key=lambda each: each[1].exception() is not None):
        lane.keep(run.result())

"""One cell looked at closely: a request's story, a trace of the schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from gzip import GzipFile
from pathlib import Path
from typing import BinaryIO

from headway.core.record import Outcome, Record
from headway.errors import ConfigError
from headway.explain.explanation import Explanation
from headway.explain.story import Story
from headway.lab.grid import Cell
from headway.lab.policy_choice import label
from headway.lab.run_cells import Tick
from headway.lab.simulation import CellResult, Scenario, run_cell
from headway.sim.chrome_trace import ChromeTrace
from headway.sim.watcher import StoryWatcher
from headway.traces import TraceRequest
from headway.whole_file import appearing

_SHOWN_IDS = 5


def explain(
    scenario: Scenario, cell: Cell, request_id: str, tick: Tick = lambda requests: None
) -> tuple[Story, Explanation | None]:
    """The story of one request in one cell, and why it took as long; None if it ended before any step was planned.

    ConfigError, naming some that exist, for an id that does not.
    """
    request = _find(scenario.stream.requests(cell.seed), request_id)
    system = scenario.system
    block_bytes = system.limits.block_size * system.calibration.kv_bytes_per_token
    watcher = StoryWatcher(request_id, request.arrival_s / cell.load, block_bytes)
    run_cell(scenario, cell, _ticking(tick), watcher)
    assert watcher.story is not None, "a simulation ended without this request"
    return watcher.story, watcher.explanation


def trace_schedule(
    scenario: Scenario, cell: Cell, path: Path, tick: Tick = lambda requests: None
) -> tuple[CellResult, ChromeTrace]:
    """Run one cell and write its schedule to `path`, compressed if it ends in `.gz`.

    The same cell gives the same bytes. The file appears when it is whole. ConfigError if it cannot be written.
    """
    limits = scenario.system.limits
    title = f"{label(cell.policy)}, load {cell.load:g}, seed {cell.seed}, simulated"
    with _appearing(path) as file:
        names = scenario.system_of(cell.policy).names
        trace = ChromeTrace(file, title=title, instances=names, lanes=limits.pipeline_stages)
        result = run_cell(scenario, cell, _ticking(tick), trace)
        trace.close()
    return result, trace


def _ticking(tick: Tick) -> Callable[[Record], None]:
    return lambda record: tick(record.outcome is not Outcome.HANDED_OFF)


def _find(requests: list[TraceRequest], request_id: str) -> TraceRequest:
    for request in requests:
        if request.id == request_id:
            return request
    some = ", ".join(request.id for request in requests[:_SHOWN_IDS])
    raise ConfigError(f"no request {request_id!r} in the trace; its {len(requests):,} ids begin {some}")


@contextmanager
def _appearing(path: Path) -> Iterator[BinaryIO]:
    """A file that is there once it is whole; compressed ones hold neither a time nor a name."""
    try:
        with appearing(path) as raw, _packed(raw) if path.suffix == ".gz" else nullcontext(raw) as file:
            yield file
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror})") from error


def _packed(raw: BinaryIO) -> AbstractContextManager[BinaryIO]:
    return GzipFile("", "wb", fileobj=raw, mtime=0)  # type: ignore[return-value] # a binary file in all but its type

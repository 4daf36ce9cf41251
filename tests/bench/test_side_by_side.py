"""The clock of an engine that takes turns, by hand."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE, Popen
from time import sleep
from typing import Any

import pytest

from bench import side_by_side
from bench.side_by_side import TURN_S, TurnTime


class Machine:
    """A machine whose clock the test advances; between two turns of ours the other engines work for 5 s."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.said: list[bool] = []
        self.worker_pid = 0

    def perf_counter(self) -> float:
        return self.now_s

    def recv(self) -> None:
        if self.said:
            assert stands_still(self.worker_pid, still=True), "a worker goes on beside others' turns"
        self.now_s += 5.0

    def send(self, goes_on: bool) -> None:
        self.said.append(goes_on)


def stands_still(pid: int, *, still: bool) -> bool:
    """Whether a process is stopped, or is not; a signal takes its time to be followed."""
    for _ in range(1000):
        stopped = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"
        if stopped is still:
            return True
        sleep(0.01)
    return False


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    made = Machine()
    monkeypatch.setattr(side_by_side, "time", made)
    with Popen([sys.executable, "-c", "input()"], stdin=PIPE) as worker:
        made.worker_pid = worker.pid
        try:
            yield made
            assert stands_still(worker.pid, still=False)
        finally:
            worker.kill()


def clock_of(machine: Any, speed: float = 1.0) -> TurnTime:
    return TurnTime(machine, [machine.worker_pid], speed)


def test_what_others_take_is_left_out(machine: Machine) -> None:
    with clock_of(machine) as clock:
        machine.now_s += 3.0  # what comes before the stream is no part of it
        clock.begin()
        for _ in range(3):
            machine.now_s += TURN_S / 2
            clock.stepped()
        # A turn after the second step; in 5 s of others none of ours went by.
        assert machine.said == [True]
        assert clock.now_s() == pytest.approx(1.5 * TURN_S)
        machine.now_s += 4 * TURN_S
        clock.stepped()
        assert machine.said == [True, True]
        assert clock.now_s() == pytest.approx(5.5 * TURN_S)
    assert machine.said == [True, True, False]


def test_nobody_waits_for_an_arrival(machine: Machine) -> None:
    with clock_of(machine) as clock:
        clock.begin()
        clock.idle(100.0)
        assert clock.now_s() == pytest.approx(100.0)
        clock.idle(99.0)  # it is later already
        assert clock.now_s() == pytest.approx(100.0)
        # What was skipped is none of the turn.
        machine.now_s += TURN_S / 2
        clock.stepped()
        assert not machine.said
        machine.now_s += TURN_S
        clock.stepped()
        assert machine.said == [True]


def test_on_a_machine_half_as_fast_the_clock_goes_half_as_fast(machine: Machine) -> None:
    with clock_of(machine, speed=0.5) as clock:
        clock.begin()
        machine.now_s += 2 * TURN_S
        assert clock.now_s() == pytest.approx(TURN_S)
        clock.stepped()
        assert machine.said == [True]
        assert clock.now_s() == pytest.approx(TURN_S)
        clock.idle(100.0)
        machine.now_s += TURN_S
        assert clock.now_s() == pytest.approx(100.0 + TURN_S / 2)


def test_who_fails_leaves_the_turn_to_the_others(machine: Machine) -> None:
    with pytest.raises(ValueError, match="of the engine"), clock_of(machine):
        raise ValueError("of the engine")
    assert machine.said == [False]

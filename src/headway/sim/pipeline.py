"""When the steps of one engine run on its devices."""

from __future__ import annotations


class Pipeline:
    """Stages in a row, each busy with one step at a time; a step takes each for an equal share.

    A step enters when the host has prepared it and the first stage is free. With one stage this is a
    device; with a second step scheduled ahead, the host's part is hidden behind the first. Source: the flow
    shop recurrence; vLLM's pipeline parallelism keeps as many steps in flight as there are stages.

    A stage learns what is to be copied with its part of a step, and copies its own layers over its own GPUs' links:
    the last one begins later than the first, and where a step waits for copies each stage does.
    """

    def __init__(self, stages: int) -> None:
        self._free_s = [0.0] * stages

    def dispatch(self, now_s: float, host_s: float, step_s: float, wait_s: float = 0.0) -> float:
        """When a step handed over now comes out, if the host needs `host_s` first and the stages `step_s` in all.

        Each stage waits `wait_s` for copies before its part.
        """
        ready_s = now_s + host_s
        share_s = wait_s + step_s / len(self._free_s)
        for stage, free_s in enumerate(self._free_s):
            ready_s = max(ready_s, free_s) + share_s
            self._free_s[stage] = ready_s
        return ready_s

    def lag_s(self, now_s: float) -> float:
        """How much later than the first stage the last one comes to what was handed over last; 0 for one stage."""
        return max(0.0, self._free_s[-1] - max(now_s, self._free_s[0]))

    def cut(self, now_s: float) -> None:
        """Every stage is free from now on at the latest: what they are busy with is given up."""
        self._free_s = [min(free_s, now_s) for free_s in self._free_s]

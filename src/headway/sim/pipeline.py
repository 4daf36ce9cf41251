"""When the steps of one engine run on its devices."""

from __future__ import annotations


class Pipeline:
    """Stages in a row, each busy with one step at a time; a step takes each for an equal share.

    A step enters when the host has prepared it and the first stage is free. With one stage this is a
    device; with a second step scheduled ahead, the host's part is hidden behind the first. Source: the flow
    shop recurrence; vLLM's pipeline parallelism keeps as many steps in flight as there are stages.
    """

    def __init__(self, stages: int) -> None:
        self._free_s = [0.0] * stages

    def dispatch(self, now_s: float, host_s: float, step_s: float) -> float:
        """When a step handed over now comes out, if the host needs `host_s` first and the stages `step_s` in all."""
        ready_s = now_s + host_s
        share_s = step_s / len(self._free_s)
        for stage, free_s in enumerate(self._free_s):
            ready_s = max(ready_s, free_s) + share_s
            self._free_s[stage] = ready_s
        return ready_s

"""Room on the host, as one victim after another takes it."""

from __future__ import annotations

from collections.abc import Callable

from headway.core.job import Job
from headway.core.plan import Fate
from headway.core.view import StepView

ChooseFate = Callable[[Job, bool], Fate | None]
"""What becomes of a victim's KV, given whether the host has room for it; None: it keeps its KV."""


class HostRoom:
    """Free blocks of the host in one step. What is there already, or on its way, takes no more of them."""

    def __init__(self, view: StepView) -> None:
        self._view = view
        self._free_blocks = view.host_free_blocks

    def fate(self, job: Job, choose: ChooseFate) -> Fate | None:
        """What `choose` says of a resident, whose room is taken if it is swapped."""
        unsent = self._view.unsent_blocks(job)
        fate = choose(job, self._view.host_total_blocks > 0 and unsent <= self._free_blocks)
        if fate is Fate.SWAP:
            self._free_blocks -= unsent
        return fate

    def copies(self, job: Job) -> bool:
        """Whether some of a resident is still to be sent and has room, which it then takes."""
        unsent = self._view.unsent_blocks(job)
        if not 0 < unsent <= self._free_blocks:
            return False
        self._free_blocks -= unsent
        return True

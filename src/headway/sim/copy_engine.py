"""When copies between device and host are done."""

from __future__ import annotations

from headway.core.host_copies import Copy
from headway.predict.transfer import TransferModel


class CopyEngine:
    """One direction: one copy at a time, in the order they were asked for, beside the steps.

    A copy takes the law's seconds for its bytes, `block_bytes` a block, however many layers it is made of.
    """

    def __init__(self, law: TransferModel, block_bytes: int) -> None:
        self._law = law
        self._block_bytes = block_bytes
        self._free_s = 0.0

    def seconds(self, copy: Copy) -> float:
        """Seconds the copy takes once it has begun."""
        return self._law.seconds(len(copy.blocks) * self._block_bytes)

    def submit(self, copy: Copy, now_s: float) -> float:
        """When a copy asked for now will be done."""
        self._free_s = max(self._free_s, now_s) + self.seconds(copy)
        return self._free_s

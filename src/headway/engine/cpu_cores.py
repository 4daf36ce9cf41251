"""How many cores the CPU backend computes on."""

from __future__ import annotations

from functools import wraps
from typing import Any

from headway.engine.kv.host import CONNECTOR


def compute_on_as_many_cores_as_without_connector() -> None:
    """Let an engine with Headway's KV connector compute on the cores that it would have without one.

    vLLM's CPU backend sets one core aside for the scheduler, and another one where there is any KV connector, for
    Nixl's busy thread; where that leaves none it sets none aside. Headway's connector has no busy thread. With host
    memory an engine would else compute on fewer cores, or on two cores on both instead of one.
    """
    from vllm.utils.ompmultiprocessing import OMPProcessManager

    settle = OMPProcessManager.__init__
    if getattr(settle, "knows_headway_connector", False):
        return

    @wraps(settle)
    def init(self: Any, config: Any) -> None:
        transfer = config.kv_transfer_config
        ours = transfer is not None and transfer.kv_connector == CONNECTOR
        config.kv_transfer_config = None if ours else transfer
        try:
            settle(self, config)
        finally:
            config.kv_transfer_config = transfer

    init.knows_headway_connector = True  # type: ignore[attr-defined]
    OMPProcessManager.__init__ = init

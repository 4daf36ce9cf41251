"""How many cores the CPU backend computes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headway.engine.kv.host import CONNECTOR


def overlooks_connector(settle: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """Let an engine with Headway's KV connector compute on the cores that it would have without one.

    vLLM's CPU backend sets one core aside for the scheduler, and another one where there is any KV connector, for
    Nixl's busy thread; where that leaves none it sets none aside. Headway's connector has no busy thread. With host
    memory an engine would else compute on fewer cores, or on two cores on both instead of one.
    """

    def init(self: Any, config: Any) -> None:
        transfer = config.kv_transfer_config
        ours = transfer is not None and transfer.kv_connector == CONNECTOR
        config.kv_transfer_config = None if ours else transfer
        try:
            settle(self, config)
        finally:
            config.kv_transfer_config = transfer

    return init

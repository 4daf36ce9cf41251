"""How a replay gathers its requests into batches, and over which servers."""

from __future__ import annotations

from dataclasses import dataclass

from headway.errors import ConfigError
from headway.http_client import api_url
from headway.loadgen.batch_streams import SILENCE_S
from headway.loadgen.instance import KvMemory
from headway.predict.length import LengthPredictor
from headway.routing.batch_queue import BatchQueue
from headway.routing.choosing import BatchTime
from headway.routing.magnus import WMA_LIMIT, BatchSettings, build_batch_queue, find_batch_preset


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """A row of `routing.magnus` and its settings, for the replay's own server and `more_urls` beside it.

    `kv_tokens` is what one server can hold; None: what its metrics say. `predictor` guesses answers' lengths
    and learns from those that finish; without one every answer is planned at its limit. `batch_time` guesses
    how long batches take; None: measured before the replay, where the row asks for it. A batch of which
    nothing has come for `silence_s` has its server asked whether it is still there. Raises ConfigError for
    what is not accepted.
    """

    batches: str
    more_urls: tuple[str, ...] = ()
    kv_tokens: int | None = None
    batch_size: int | None = None
    wma_limit: int = WMA_LIMIT
    confidence: float = 0.5
    safety_factor: float = 1.0
    predictor: LengthPredictor | None = None
    batch_time: BatchTime | None = None
    silence_s: float = SILENCE_S

    def __post_init__(self) -> None:
        for url in self.more_urls:
            api_url(url, "")
        row = find_batch_preset(self.batches)
        if row.simulated:
            raise ConfigError(f"batches {row.name!r} exist in the simulator alone; accepted here: the others")
        if not self.silence_s > 0:
            raise ConfigError(f"silence_s is {self.silence_s}; accepted: a number of seconds above 0")
        self._settings(KvMemory(1 if self.kv_tokens is None else self.kv_tokens))

    @property
    def needs_times(self) -> bool:
        """Whether the row chooses by a batch's time, and nobody guesses it yet."""
        return find_batch_preset(self.batches).by_ratio and self.batch_time is None

    def queue(self, memory: KvMemory, batch_time: BatchTime | None) -> BatchQueue:
        """A fresh central queue for servers of this memory."""
        return build_batch_queue(self.batches, self._settings(memory), batch_time)

    def _settings(self, memory: KvMemory) -> BatchSettings:
        return BatchSettings(
            capacity_tokens=memory.capacity_tokens,
            block_tokens=memory.block_tokens,
            batch_size=self.batch_size,
            wma_limit=self.wma_limit,
            confidence=self.confidence,
            safety_factor=self.safety_factor,
        )

"""A KV tier beside an engine, as a user asks for it: its size and its link."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from headway.errors import ConfigError
from headway.predict.transfer import TransferModel

_GIB = 1 << 30
_MOST_GIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class KvTier:
    """Memory outside the device in which a KV connector keeps blocks: `--kv-offloading-size`, LMCache and the like.

    `gib` is its size. A transfer takes `latency_ms`, then its bytes at `gib_per_s`, each direction by itself; None
    means as fast as the host memory of the simulated machine. Sizes and speeds are those of one GPU, until
    `of_engine` makes them those of an engine.
    """

    gib: float
    gib_per_s: float | None = None
    latency_ms: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.gib <= _MOST_GIB:
            raise ConfigError(f"gib of the KV tier is {self.gib:g}; accepted: 0 to {_MOST_GIB:,}")
        if self.gib_per_s is not None and not self.gib_per_s > 0:
            raise ConfigError(f"gib_per_s of the KV tier is {self.gib_per_s:g}; accepted: more than 0")
        if self.latency_ms is not None and not 0 <= self.latency_ms < float("inf"):
            raise ConfigError(f"latency_ms of the KV tier is {self.latency_ms:g}; accepted: 0 or more")

    def of_engine(self, gpus: int) -> KvTier:
        """The tier of an engine of so many GPUs, each of which has its share and its own link."""
        gib_per_s = None if self.gib_per_s is None else gpus * self.gib_per_s
        return replace(self, gib=gpus * self.gib, gib_per_s=gib_per_s)

    def num_blocks(self, block_bytes: int) -> int:
        """Whole KV blocks that it holds."""
        return int(self.gib * _GIB) // block_bytes

    def link(self, host: TransferModel) -> TransferModel:
        """What a transfer takes, where `host` is what a copy between device and host memory takes."""
        start_s = host.start_s if self.latency_ms is None else self.latency_ms / 1000
        bytes_per_s = host.bytes_per_s if self.gib_per_s is None else self.gib_per_s * _GIB
        return TransferModel(start_s=start_s, bytes_per_s=bytes_per_s)

    def __str__(self) -> str:
        return "/".join(
            f"{field.name}={getattr(self, field.name):.15g}"
            for field in fields(self)
            if getattr(self, field.name) is not None
        )


def parse_kv_tier(text: str) -> KvTier:
    """The tier that a line of text describes; ConfigError for a part that is not accepted.

    >>> parse_kv_tier("gib=200/gib_per_s=20")
    KvTier(gib=200.0, gib_per_s=20.0, latency_ms=None)
    """
    accepted = "gib=X[/gib_per_s=X][/latency_ms=X], each a number"
    names = {field.name for field in fields(KvTier)}
    found: dict[str, float] = {}
    for part in text.split("/"):
        name, _, value = part.partition("=")
        if name not in names or name in found:
            raise ConfigError(
                f"{part!r} of the KV tier {text!r} is unknown or given twice; accepted: {accepted}"
            )
        try:
            found[name] = float(value)
        except ValueError:
            raise ConfigError(f"{name} of the KV tier is {value!r}; accepted: {accepted}") from None
    if "gib" not in found:
        raise ConfigError(f"the KV tier {text!r} has no size; accepted: {accepted}")
    return KvTier(**found)

"""The flags of `headway serve` that are about several instances behind one address."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from headway.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayFlags:
    """As they were given; what was not has its default, so that it can be told."""

    instances: int | None = None
    pools: str | None = None
    join: tuple[str, ...] = ()
    router: str | None = None
    tickets: bool = True
    rebalance: bool = False
    api_keys: Path | None = None
    max_queue: int | None = None
    max_age: float | None = None
    max_in_flight: int | None = None
    max_per_tenant: int | None = None
    max_body_mib: int | None = None
    access_log: Path | None = None
    resume: bool = True
    drain_seconds: float | None = None
    shadow: str | None = None

    @property
    def launches(self) -> bool:
        """Whether instances are started here."""
        return self.instances is not None or self.pools is not None

    @property
    def want_gateway(self) -> bool:
        """Whether there is a gateway; else it is one server by itself."""
        return self.launches or bool(self.join)

    def check_none_given(self) -> None:
        """Raise ConfigError if any was given, although there is no gateway that could heed it."""
        given = [
            f"--{'' if value is not False else 'no-'}{field.name.replace('_', '-')}"
            for field in fields(self)
            if (value := getattr(self, field.name)) != field.default
        ]
        if given:
            raise ConfigError(
                f"{given[0]} is for several instances behind one address; accepted with it: --instances, --pools or "
                "--join"
            )

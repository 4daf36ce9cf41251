"""Settings of evictions that count steps or preemptions."""

from __future__ import annotations

from headway.errors import ConfigError

MOST = 1_000_000
"""Far more than any run comes to; what is kept for so many steps must still fit a memory."""


def check_count(name: str, count: int) -> None:
    """Raise ConfigError unless the setting of that name is 0 to MOST."""
    if not 0 <= count <= MOST:
        raise ConfigError(f"{name} is {count}; accepted: 0 to {MOST:,}")

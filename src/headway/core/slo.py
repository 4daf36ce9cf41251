"""Latency targets of one request."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headway.errors import ConfigError

MAX_TARGET_S = 7 * 24 * 3600.0
"""No target may exceed a week: a larger one is a unit mistake."""

MIN_LEFT_S = 1e-3
"""Least remaining target, however much time has passed: a target of 0 would be no target."""


@dataclass(frozen=True, slots=True)
class Slo:
    """Targets in seconds, each optional: time to first token, mean time between tokens, whole request.

    Raises ConfigError for a target that is not a number in (0, MAX_TARGET_S]; a value out of range never counts as
    "most urgent".
    """

    ttft_s: float | None = None
    tbt_s: float | None = None
    deadline_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("ttft_s", "tbt_s", "deadline_s"):
            value = getattr(self, name)
            if value is not None and not _is_target(value):
                accepted = f"a number of seconds in (0, {MAX_TARGET_S:g}]"
                raise ConfigError.of(name, repr(value), accepted)

    def __bool__(self) -> bool:
        return self.ttft_s is not None or self.tbt_s is not None or self.deadline_s is not None

    def with_defaults(self, default: Slo) -> Slo:
        """These targets, completed by the default's."""
        if not self:
            return default  # requests share the object
        return Slo(
            ttft_s=default.ttft_s if self.ttft_s is None else self.ttft_s,
            tbt_s=default.tbt_s if self.tbt_s is None else self.tbt_s,
            deadline_s=default.deadline_s if self.deadline_s is None else self.deadline_s,
        )

    def after(self, spent_s: float) -> Slo:
        """The rest of the targets after `spent_s` seconds of the request's time, at least MIN_LEFT_S.

        For an instance that continues to serve it like a request that has just arrived.
        """
        return replace(
            self,
            ttft_s=None if self.ttft_s is None else max(MIN_LEFT_S, self.ttft_s - spent_s),
            deadline_s=None if self.deadline_s is None else max(MIN_LEFT_S, self.deadline_s - spent_s),
        )


def _is_target(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= MAX_TARGET_S


NO_TARGETS = Slo()

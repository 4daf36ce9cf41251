"""Arrival processes: when requests arrive."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Protocol

import numpy as np

from headway.errors import ConfigError

MIN_ARRIVALS_PER_CYCLE = 0.001
"""Least arrivals in a cycle of an on/off process; with fewer it would walk through thousands of empty phases each."""


MIN_CV, MAX_CV = 0.001, 1000.0
"""Outside this range the gamma law cannot be drawn; use `Fixed` below it."""


class ArrivalProcess(Protocol):
    """Draws the times at which requests arrive."""

    def sample(self, count: int, rng: np.random.Generator) -> list[float]:
        """`count` arrival times in seconds, non-decreasing, the first 0.

        With generators in equal states, a shorter list is the beginning of a longer one.
        """
        ...


@dataclass(frozen=True, slots=True)
class Gamma:
    """Renewal arrivals at a mean rate, with intervals ~ Gamma(shape=1/cv^2, scale=cv^2/rate).

    `cv` is the intervals' coefficient of variation: 1 is Poisson, more is burstier.
    Source: Wu et al. 2023, arXiv:2305.05920 (FastServe), and its published generator.
    """

    rate_rps: float
    cv: float

    def __post_init__(self) -> None:
        _require_positive(self, "rate_rps")
        if not MIN_CV <= self.cv <= MAX_CV:
            raise ConfigError(f"cv is {self.cv}; accepted: {MIN_CV} to {MAX_CV:g}")

    def sample(self, count: int, rng: np.random.Generator) -> list[float]:
        """See `ArrivalProcess.sample`."""
        return _from_zero(count, rng.gamma(self.cv**-2, self.cv**2 / self.rate_rps, count))


@dataclass(frozen=True, slots=True)
class Poisson:
    """Memoryless arrivals at a mean rate: `Gamma` with cv 1."""

    rate_rps: float

    def __post_init__(self) -> None:
        _require_positive(self, "rate_rps")

    def sample(self, count: int, rng: np.random.Generator) -> list[float]:
        """See `ArrivalProcess.sample`."""
        return Gamma(self.rate_rps, cv=1.0).sample(count, rng)


@dataclass(frozen=True, slots=True)
class OnOff:
    """Poisson arrivals whose rate switches between two phases of exponential length, on first.

    The intervals are those of a two-state Markov-modulated Poisson process; with `rate_off_rps` 0 their
    squared coefficient of variation is 1 + 2 r a / (a + b)^2 with r = rate_on_rps, a = 1/mean_on_s,
    b = 1/mean_off_s. Source: Fischer and Meier-Hellstern 1993, doi:10.1016/0166-5316(93)90035-S.
    """

    rate_on_rps: float
    rate_off_rps: float
    mean_on_s: float
    mean_off_s: float

    def __post_init__(self) -> None:
        _require_positive(self, "rate_on_rps", "mean_on_s", "mean_off_s")
        if not (isfinite(self.rate_off_rps) and self.rate_off_rps >= 0):
            raise ConfigError.of("rate_off_rps", self.rate_off_rps, "a finite number, 0 or more")
        if self._arrivals_per_cycle() < MIN_ARRIVALS_PER_CYCLE:
            raise ConfigError(
                f"an on/off cycle has {self._arrivals_per_cycle():g} arrivals on average; "
                f"accepted: {MIN_ARRIVALS_PER_CYCLE} or more"
            )

    def sample(self, count: int, rng: np.random.Generator) -> list[float]:
        """See `ArrivalProcess.sample`; the first arrival is at 0 wherever its phase began."""
        phases = ((self.rate_on_rps, self.mean_on_s), (self.rate_off_rps, self.mean_off_s))
        now_s, phase, left_s = 0.0, 0, rng.exponential(self.mean_on_s)
        times_s: list[float] = []
        while len(times_s) < count:
            # A unit of exponential "work" is used up at the phase's rate; the arrival is where it ends.
            work = rng.exponential()
            while work > phases[phase][0] * left_s:
                work -= phases[phase][0] * left_s
                now_s += left_s
                phase = 1 - phase
                left_s = rng.exponential(phases[phase][1])
            step_s = work / phases[phase][0] if work else 0.0
            now_s, left_s = now_s + step_s, max(left_s - step_s, 0.0)
            times_s.append(now_s)
        return [time_s - times_s[0] for time_s in times_s]

    def _arrivals_per_cycle(self) -> float:
        return self.rate_on_rps * self.mean_on_s + self.rate_off_rps * self.mean_off_s


@dataclass(frozen=True, slots=True)
class Fixed:
    """One arrival every `interval_s`."""

    interval_s: float

    def __post_init__(self) -> None:
        _require_positive(self, "interval_s")

    def sample(self, count: int, rng: np.random.Generator) -> list[float]:
        """See `ArrivalProcess.sample`; not random."""
        return [place * self.interval_s for place in range(count)]


@dataclass(frozen=True, slots=True)
class AllAtOnce:
    """Every request at 0 s (AdaptiveLLM, Algorithm 2 line 1)."""

    def sample(self, count: int, rng: np.random.Generator) -> list[float]:
        """See `ArrivalProcess.sample`; not random."""
        return [0.0] * count


def _from_zero(count: int, intervals_s: np.ndarray) -> list[float]:
    times_s: list[float] = np.concatenate(([0.0], np.cumsum(intervals_s)))[:count].tolist()
    return times_s


def _require_positive(process: ArrivalProcess, *names: str) -> None:
    for name in names:
        value = getattr(process, name)
        if not (isfinite(value) and value > 0):
            raise ConfigError.of(name, value, "a finite number above 0")

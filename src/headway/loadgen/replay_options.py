"""Where a trace is sent, and how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from headway.core.length_estimate import LengthEstimate
from headway.errors import ConfigError
from headway.http_client import api_url
from headway.loadgen.prompts import Dialect, TokenIds

DEFAULT_TIMEOUT_S = 3600.0
"""Longer than a request waits where a measurement makes sense, and a server that hangs is given up in the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """Where a trace is sent, and how.

    `vanish_fraction` of the requests, chosen by the seed, are cut off by their client mid-stream. A `plain`
    server is asked for nothing that OpenAI's own API does not define: no forced lengths, targets or tenants.
    With `own_stops` answers end where the model ends them, in place of the trace's lengths. `estimates` are
    predicted lengths, by request, that the server is told.
    `timeout_s` limits each whole request, its wait in the server's queue too; inf is for as long as it takes.
    """

    url: str
    model: str | None = None
    seed: int = 0
    vocab_size: int | None = None
    token_times: bool = False
    skip_too_long: bool = False
    plain: bool = False
    own_stops: bool = False
    estimates: Mapping[str, LengthEstimate] = field(default_factory=dict)
    vanish_fraction: float = 0.0
    api_key: str | None = None
    timeout_s: float = DEFAULT_TIMEOUT_S

    def __post_init__(self) -> None:
        api_url(self.url, "")
        self._token_ids()
        if not 0 <= self.vanish_fraction <= 1:
            raise ConfigError(f"vanish_fraction is {self.vanish_fraction}; accepted: 0 to 1")
        if not self.timeout_s > 0:
            raise ConfigError(f"timeout_s is {self.timeout_s}; accepted: a number of seconds above 0, or inf")

    @property
    def session_timeout_s(self) -> float | None:
        """What a session is opened with: None for no limit."""
        return None if self.timeout_s == inf else self.timeout_s

    def dialect(self, model: str, max_model_len: int | None) -> Dialect:
        """How requests are put to a server of this model."""
        return Dialect(
            model,
            max_model_len,
            self._token_ids(),
            self.plain,
            own_stops=self.own_stops,
            estimates=self.estimates,
        )

    def _token_ids(self) -> TokenIds:
        return TokenIds.for_vocabulary(self.vocab_size, self.seed)

"""Which replica a request goes to, by one of Headway's routers; knows nothing of Ray."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from headway.core.job import Job
from headway.core.slo import NO_TARGETS, Slo
from headway.errors import ConfigError
from headway.routing import Router

_BYTES_PER_TOKEN = 4
"""A prompt in text is taken to have so many; only routers that weigh prompts use it."""
_TARGETS = {"ttft_s": "headway_ttft_ms", "tbt_s": "headway_tbt_ms", "deadline_s": "headway_deadline_ms"}


class Placement:
    """Asks the router once for each request, and tells it of the end.

    `sees_ends`: whether somebody will say when a request has ended. If nobody does, each counts as ended at once, so
    that nothing is kept for it; only routers that do not count are any good then.
    """

    def __init__(
        self, router: Router, *, sees_ends: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._router = router
        self._sees_ends = sees_ends
        self._clock = clock
        self._placed: dict[str, tuple[Job, str]] = {}

    def choose(self, request_id: str, request: Any, replicas: Sequence[str]) -> str:
        """The replica for a request: one of `replicas`, and the one of last time if it is asked again.

        `request` has OpenAI's fields as attributes; None if nothing of it is known.
        """
        known = self._placed.get(request_id)
        if known is not None and known[1] in replicas:
            return known[1]
        if known is not None:
            self.ended(request_id)
        job = job_of(request_id, request, self._clock())
        chosen = self._router.route(job, sorted(replicas))
        if self._sees_ends:
            self._placed[request_id] = (job, chosen)
        else:
            self._router.end(job)
        return chosen

    def ended(self, request_id: str) -> None:
        """A request is over, however it went; one that is not known changes nothing."""
        known = self._placed.pop(request_id, None)
        if known is not None:
            self._router.end(known[0])


def job_of(request_id: str, request: Any, now_s: float) -> Job:
    """What a router may know of a request. What the engine will refuse anyway counts as not said."""
    xargs = getattr(request, "vllm_xargs", None) or {}
    tenant = xargs.get("headway_tenant", "")
    return Job(
        id=request_id,
        arrival_s=now_s,
        num_prompt_tokens=_prompt_tokens(request),
        max_output_tokens=getattr(request, "max_tokens", None) or 1,
        slo=_slo(xargs),
        priority=getattr(request, "priority", None) or 0,
        tenant=tenant if isinstance(tenant, str) else "",
    )


def _slo(xargs: dict[str, Any]) -> Slo:
    given = {name: xargs[key] for name, key in _TARGETS.items() if xargs.get(key) is not None}
    try:
        return Slo(**{name: float(value) / 1000 for name, value in given.items()}) if given else NO_TARGETS
    except (ConfigError, TypeError, ValueError):
        return NO_TARGETS


def _prompt_tokens(request: Any) -> int:
    prompt = getattr(request, "prompt", None) or getattr(request, "messages", None) or ""
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
        return len(prompt)
    text = prompt if isinstance(prompt, str) else str(prompt)
    return max(1, len(text) // _BYTES_PER_TOKEN)

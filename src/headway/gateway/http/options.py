"""The gateway's start-up options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from headway.core.slo import NO_TARGETS, Slo
from headway.errors import ConfigError
from headway.gateway.http.keys import NO_KEYS, Keys
from headway.setting import COUNT, NOT_NEGATIVE, POSITIVE_SECONDS, SECONDS, Setting, Shown, check_settings

MIB = 2**20
BODIES_HELD = 5
"""Number of largest bodies that must fit at once: a tenant may use half of the room, and needs two copies."""


@dataclass(frozen=True, slots=True)
class Cors:
    """Which pages of other origins may read the gateway's answers: vLLM's flags, in Starlette's terms."""

    allow_origins: tuple[str, ...]
    allow_methods: tuple[str, ...] = ("*",)
    allow_headers: tuple[str, ...] = ("*",)
    allow_credentials: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """Limits and defaults of the serving path. None is no limit.

    - `slo`: targets of requests that name none.
    - `max_in_flight`, `max_queue` and `max_per_tenant` count sequences: one for each prompt of a request, times `n`. A
      request has at most `max_sequences`.
    - `max_in_flight` are sent to each instance at a time. Where places are kept free for hand-offs, the limit is for
      all instances together: `max_in_flight` times their number. Other requests wait in the queue. Headway's instances
      order better than that.
    - `max_queue` sequences may be without their first token, in the queue and at instances, each for `max_age_s`.
    - `max_buffered_mib` bounds what all clients make the gateway hold together (`ClientLimits`).
    - `trust_tenants`: a tenant that a client names without a key has a share of its own; else the name is a label.
    - `max_moves`: how often a request is handed off.
    - `max_tries`: how often it is asked for, or until no instance is left that has not failed with it (two tries at
      least). A request that crashed an instance is retried at most on all instances but one.
    - `resume`: streams whose instance breaks go on at another.
    - `drain_s`: how long running requests have when the gateway stops.
    - `cors` None: no page of another origin may read an answer.
    - `batch_dir`: where files and batches are kept; without it there are none.
    """

    slo: Slo = NO_TARGETS
    keys: Keys = NO_KEYS
    cors: Cors | None = None
    max_queue: Annotated[
        int | None,
        Setting("Most sequences (prompts times n) without their first token; more: 429.", "N", COUNT),
    ] = None
    max_age_s: Annotated[
        float | None,
        Setting(
            "Most seconds to the first token; longer: 429.", "S", POSITIVE_SECONDS, Shown(flag="--max-age")
        ),
    ] = None
    max_in_flight: Annotated[
        int | None,
        Setting("Most sequences at one instance; others wait (default: no limit).", "N", COUNT),
    ] = None
    max_per_tenant: Annotated[int | None, Setting("Most sequences of one tenant; more: 429.", "N", COUNT)] = (
        None
    )
    max_sequences: Annotated[
        int, Setting("Most sequences (prompts times n) of one request; more: 400.", "N", COUNT)
    ] = 1024
    max_body_mib: Annotated[
        int, Setting("Largest request (default: 16 MiB); larger: 413.", "N", COUNT, Shown(default=False))
    ] = 16
    max_buffered_mib: Annotated[
        int,
        Setting(
            "Most bytes of all held requests together (default: 1,024 MiB); more: 429.",
            "N",
            COUNT,
            Shown(default=False),
        ),
    ] = 1024
    trust_tenants: Annotated[
        bool,
        Setting(
            "Without keys, give tenants that clients name shares of their own. For a proxy in front "
            "that names them."
        ),
    ] = False
    ssl_certfile: Annotated[Path | None, Setting("Certificate with its chain: serve HTTPS.", "FILE")] = None
    ssl_keyfile: Annotated[
        Path | None, Setting("Key of the certificate, if it is not in that file.", "FILE")
    ] = None
    access_log: Annotated[
        Path | None, Setting("File for the access log, one line of JSON a request.", "FILE")
    ] = None
    resume: Annotated[
        bool,
        Setting(
            "Let streams go on at another instance if theirs breaks.",
            shown=Shown(flag="--resume/--no-resume"),
        ),
    ] = True
    drain_s: Annotated[
        float,
        Setting(
            "Seconds that running requests have after Ctrl-C (default: 30).",
            "S",
            SECONDS,
            Shown(flag="--drain-seconds", default=False),
        ),
    ] = 30.0
    sse_keep_alive_s: Annotated[
        float | None,
        Setting(
            "Seconds between comments to a stream without its first token.",
            "S",
            POSITIVE_SECONDS,
            Shown(flag="--sse-keep-alive"),
        ),
    ] = None
    batch_dir: Annotated[
        Path | None,
        Setting("Serve OpenAI's Files and Batch API, and keep files and batches here.", "FOLDER"),
    ] = None
    max_file_mib: Annotated[
        int, Setting("Size of an uploaded file; more: 413.", "N", COUNT, Shown(default=False))
    ] = 200
    max_files_mib: Annotated[
        int,
        Setting(
            "Files of each tenant together, answers too (default: 4,096 MiB); more: 413.",
            "N",
            COUNT,
            Shown(default=False),
        ),
    ] = 4096
    max_batches: Annotated[
        int, Setting("Batches of each tenant that have not ended; more: 429.", "N", COUNT)
    ] = 100
    max_batch_in_flight: Annotated[
        int, Setting("Sequences of batches at each instance at a time, at most.", "N", COUNT)
    ] = 256
    max_moves: Annotated[int, Setting(bounds=NOT_NEGATIVE, shown=Shown(option=False))] = 3
    max_tries: Annotated[int, Setting(bounds=COUNT, shown=Shown(option=False))] = 3

    def __post_init__(self) -> None:
        check_settings(self)
        if self.max_buffered_mib < BODIES_HELD * self.max_body_mib:
            raise ConfigError.of(
                "max_buffered_mib",
                self.max_buffered_mib,
                f"{BODIES_HELD} times max_body_mib ({self.max_body_mib}) or more",
            )
        if self.ssl_keyfile is not None and self.ssl_certfile is None:
            raise ConfigError.of("ssl_keyfile", str(self.ssl_keyfile), "with ssl_certfile")

    @property
    def names_tenants(self) -> bool:
        """Whether a tenant named by a client has a share: it is backed by a key, or by `trust_tenants`."""
        return bool(self.keys) or self.trust_tenants

    @property
    def max_body_bytes(self) -> int:
        """Largest request body that is read."""
        return self.max_body_mib * MIB

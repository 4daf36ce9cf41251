"""The settings in `--additional-config '{"headway": {...}}'`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any

import msgspec

from headway.core.slo import NO_TARGETS, Slo
from headway.engine.host_kv import HostKv
from headway.errors import ConfigError, meant
from headway.explain.trail import KEPT_ENDED
from headway.policies.presets import DecodeShare, Preset, Tail, build_policy, find_preset
from headway.setting import COUNT, Setting, Shown, ValueBounds, check_settings

MOST_EXPLAINED = 1_000_000
"""Most requests that can be kept for explanations: each takes some kilobytes of the engine's memory."""

_EXPLAINED = ValueBounds(
    f"0 (off) to {MOST_EXPLAINED:,} requests to keep", lambda value: 0 <= value <= MOST_EXPLAINED
)


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """One instance's policy, default targets and outputs.

    - `batch_width`: how many jobs a step may run. Worker slots (`--max-num-seqs`) may be more, for paused jobs.
    - `host_kv`: host memory for the KV of swapped requests.
    - `predictor`: what predicts answer lengths in the API server (see `length_predictor`). `length_model`: the file for
      what it has learned.
    - `explain`: how many ended requests can be explained; 0: none, and nothing is followed.
    - `records`: a JSONL file, one line for each request that ended.
    - `check` verifies every plan, and the ledger after every step. For tests, since it costs O(live) a step.
    - `strict`: refuse to start if the self-check finds a fault of the policy on an untested vLLM. Otherwise the engine
      starts as preset `vllm`.
    """

    policy: Annotated[
        str,
        Setting(
            "Row of the preset table (default of `headway serve`: headway; with --pools lp=N,hp=M: ascendra).",
            "NAME",
            shown=Shown(default=False),
        ),
    ] = "vllm"
    order: Annotated[str | None, Setting("In place of the policy's order.", "PART")] = None
    batching: Annotated[str | None, Setting("In place of the policy's batching.", "PART")] = None
    eviction: Annotated[str | None, Setting("In place of the policy's eviction.", "PART")] = None
    leaving: Annotated[
        tuple[str, ...] | None, Setting("In place of the policy's rules; repeatable.", "PART")
    ] = None
    tail: Tail = None
    decode_share: DecodeShare = None
    slo_ttft_s: Annotated[
        float | None, Setting("Target: seconds to the first token, for requests that name none.", "S")
    ] = None
    slo_tbt_s: Annotated[
        float | None, Setting("Target: mean seconds between tokens, for requests that name none.", "S")
    ] = None
    batch_width: Annotated[
        int | None,
        Setting("Most requests that one step runs. Worker slots are vLLM's --max-num-seqs.", "N", COUNT),
    ] = None
    host_kv: HostKv | None = None
    predictor: Annotated[
        str | None,
        Setting(
            "What predicts answer lengths and learns from answers that end: learned or none (default: "
            "learned, for policies that use lengths).",
            "SPEC",
        ),
    ] = None
    length_model: Annotated[
        str | None, Setting("File for what is learned of lengths; it need not exist.", "FILE")
    ] = None
    explain: Annotated[
        int,
        Setting(
            "Ended requests that `headway explain` remembers (default: 500); 0: none.",
            "N",
            _EXPLAINED,
            Shown(default=False),
        ),
    ] = KEPT_ENDED
    records: Annotated[
        str | None,
        Setting(
            "File for a record of each request (JSONL). An earlier file is kept beside it, numbered.",
            "FILE",
        ),
    ] = None
    check: bool = False
    strict: Annotated[
        bool,
        Setting(
            "Refuse to start if the policy fails the self-check on an untested vLLM. By default the "
            "server starts in stock order."
        ),
    ] = False

    def __post_init__(self) -> None:
        check_settings(self)
        self.preset()
        self.default_slo()

    @classmethod
    def from_additional_config(cls, additional_config: Mapping[str, Any] | None) -> EngineSettings:
        """Read vLLM's additional_config. Raises ConfigError for an unknown setting or a value of the wrong type."""
        given = (additional_config or {}).get("headway", {})
        check_keys(given, cls, "additional_config.headway")
        if isinstance(given, dict):
            check_keys(given.get("host_kv"), HostKv, "additional_config.headway.host_kv")
        try:
            return msgspec.convert(given, cls)
        except msgspec.ValidationError as error:
            if isinstance(error.__cause__, ConfigError):
                raise error.__cause__ from None
            raise ConfigError(f"additional_config.headway: {error}") from None

    def preset(self) -> Preset:
        """The named row of the preset table, with the parts given here in place of its own."""
        return find_preset(
            self.policy,
            order=self.order,
            batching=self.batching,
            eviction=self.eviction,
            leaving=self.leaving,
            tail=self.tail,
            decode_share=self.decode_share,
        )

    def length_predictor(self) -> str | None:
        """The predictor for API servers: the given one, else the default if the policy uses lengths.

        None without a predictor: `none` was given, or the policy uses no lengths. Raises ConfigError if there is a file
        for learned lengths but no predictor.
        """
        from headway.predict.lengths.choice import (
            DEFAULT_PREDICTOR,
            NONE,
        )  # imports numpy, too slow for `--help`

        if self.predictor is not None:
            found = None if self.predictor == NONE else self.predictor
        else:
            wanted = build_policy(self.preset()).uses_predictions
            found = DEFAULT_PREDICTOR if wanted else None
        if found is None and self.length_model is not None:
            raise ConfigError.of(
                "length_model",
                f"{self.length_model!r} but no lengths are predicted",
                "a file beside predictor, which says with what (--predictor of `headway serve`), or a policy that "
                "goes by lengths",
            )
        return found

    def default_slo(self) -> Slo:
        """Targets of a request that names none."""
        if self.slo_ttft_s is None and self.slo_tbt_s is None:
            return NO_TARGETS
        return Slo(ttft_s=self.slo_ttft_s, tbt_s=self.slo_tbt_s)


def check_keys(given: object, settings: type[Any], where: str) -> None:
    """Raise ConfigError for keys that the settings class lacks. Values that are not mappings are ignored."""
    accepted = [field.name for field in fields(settings)]
    unknown = sorted(set(given) - set(accepted)) if isinstance(given, dict) else []
    if unknown:
        raise ConfigError(f"unknown {', '.join(unknown)} in {where}; {meant(unknown[0], accepted)}")

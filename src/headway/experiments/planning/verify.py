"""The choice on this machine's own engine: what was predicted for it here, and what came."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from headway.core.record import Outcome, Record
from headway.core.slo import NO_TARGETS
from headway.errors import ConfigError, UpstreamError
from headway.experiments.engine_sizes import is_cost_file
from headway.experiments.planning.configuration import Configuration
from headway.experiments.planning.deploy import arguments, command, vllm_flags
from headway.experiments.planning.deployed import deployed
from headway.experiments.planning.machine import Machine
from headway.experiments.planning.planner import Planned
from headway.experiments.planning.scaled_down import MODEL, scaled_down
from headway.experiments.planning.stage import Served, Stage, served_beyond, set_stage, step_factor
from headway.experiments.policy_bench import free_port, warm_up
from headway.gateway import ReplayOptions, ReplayReport, replay
from headway.results import summarize
from headway.results.metrics import measured
from headway.traces import TraceRequest

PROFILE_SECONDS = 20
EASED = 3
"""Times that the load is halved, at most, for a client that cannot keep up: it shares the engine's cores."""
LATE_SHARE = 0.02
"""Of mean JCT: a client that sends its requests later than that, in the mean, measures itself."""
KEYS = ("mean_jct_s", "p99_jct_s", "mean_ttft_s", "mean_tbt_s", "goodput")

Tell = Callable[[str], None]
Values = dict[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What came of it. `predicted` is with what serving adds, as measured on another part of the trace; `by_profile`
    without; `at_own_speed` with steps as long as they were meanwhile, so that what is left is not the machine's drift.
    Errors are predicted / achieved - 1, of goodput the difference in points; None where not measured. The client, which
    shares the cores, sent its requests up to `client_late_s` late, which counts as time to first token.
    """

    configuration: Configuration
    words: tuple[str, ...]
    requests: int
    rate_rps: float
    served: Served
    predicted: Values
    by_profile: Values
    at_own_speed: Values
    achieved: Values
    client_late_s: float

    def errors(self, predicted: Mapping[str, float | None]) -> Values:
        """How far from what came."""
        return {key: _error(key, predicted[key], self.achieved[key]) for key in KEYS}

    def to_dict(self) -> dict[str, Any]:
        """What scripts read."""
        return {
            "configuration": asdict(self.configuration),
            "command": command(self.words),
            "requests": self.requests,
            "rate_rps": self.rate_rps,
            "served": asdict(self.served),
            "predicted": self.predicted,
            "achieved": self.achieved,
            "client_late_s": self.client_late_s,
            "errors": self.errors(self.predicted),
            "by_profile": self.by_profile,
            "errors_by_profile": self.errors(self.by_profile),
            "at_own_speed": self.at_own_speed,
            "errors_at_own_speed": self.errors(self.at_own_speed),
        }


def _error(key: str, predicted: float | None, achieved: float | None) -> float | None:
    if predicted is None or achieved is None:
        return None
    if key == "goodput":
        return predicted - achieved
    return predicted / achieved - 1 if achieved else None


def verify(planned: Planned, folder: Path, seconds: float, tell: Tell) -> Verified:
    """Profile this machine (unless it is what was planned for), predict, deploy, replay, compare. Minutes.

    One stream of about so many seconds measures what serving adds, another one is predicted. Raises ConfigError
    without vLLM, UpstreamError if the deployment does not get ready or loses a request.
    """
    if not seconds > 0:
        raise ConfigError(f"verify_seconds is {seconds}; accepted: more than 0")
    here = scaled_down(planned.choice)
    machine = _machine(planned, here, folder, tell)
    stage = set_stage(planned, here, machine, seconds)
    words = arguments(MODEL, here, NO_TARGETS)
    tell(f"deploying: {command(words)}")
    with deployed(words, free_port(), folder / "verify-server.log") as url:
        asyncio.run(warm_up(stage.before, ReplayOptions(url=url)))
        stage, before = _kept_up(url, stage, tell)
        served = served_beyond(stage, before)
        stage = stage.slowed(served)
        tell(f"serving {len(stage.requests)} requests, to compare")
        came = _replayed(url, stage.requests)
    own = replace(served, step_factor=step_factor(stage, stage.requests, came.records))
    return Verified(
        configuration=here,
        words=words,
        requests=len(stage.requests),
        rate_rps=stage.rate_rps,
        served=served,
        predicted=_mean(stage.simulated(stage.requests, served)),
        by_profile=_mean(stage.simulated(stage.requests, Served())),
        at_own_speed=_mean(stage.simulated(stage.requests, own)),
        achieved=_values(came.records),
        client_late_s=max(came.lateness_s, default=0.0),
    )


# ---- on this machine ------------------------------------------------------------------------------------


def _machine(planned: Planned, here: Configuration, folder: Path, tell: Tell) -> Machine:
    """This machine by what was planned with, if that is its own cost file; else profiled now with the same sizes."""
    theirs = planned.prepared.task.machine
    if is_cost_file(theirs.hardware) and theirs.model == MODEL:
        return theirs
    file = folder / "verify-cost.json"
    words = [
        *(sys.executable, "-m", "headway.cli", "profile", "--model", MODEL, "--out", str(file), "--force"),
        *("--seconds", f"{PROFILE_SECONDS}", "--", *vllm_flags(here)),
    ]
    tell(f"profiling this machine for about {PROFILE_SECONDS} s")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "verify-profile.log").open("wb") as log:
        ended = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False)
    if ended.returncode:
        raise UpstreamError(f"this machine could not be profiled; {folder / 'verify-profile.log'} says why")
    return Machine(str(file), MODEL)


# ---- what came -----------------------------------------------------------------------------------------


def _kept_up(url: str, stage: Stage, tell: Tell) -> tuple[Stage, list[Record]]:
    """The stage at a load that the client can send in time, or the least tried; what came of the part before."""
    for eased in range(EASED + 1):
        tell(f"serving {len(stage.before)} requests, to know what serving adds")
        report = _replayed(url, stage.before)
        if is_punctual(report) or eased == EASED:
            break
        tell(
            f"the client cannot send {stage.rate_rps:.3g} requests a second in time beside the engine: half the load"
        )
        stage = stage.eased()
    return stage, report.records


def is_punctual(report: ReplayReport) -> bool:
    """Whether what came tells of the server, not of a client that had no core to send from."""
    jct_s = summarize(report.records).mean_jct_s
    return jct_s is None or fmean(report.lateness_s) <= LATE_SHARE * jct_s


def _replayed(url: str, requests: Sequence[TraceRequest]) -> ReplayReport:
    """The records of all requests, as their client saw them. Raises UpstreamError if one failed."""
    report = asyncio.run(replay(requests, ReplayOptions(url=url)))
    for record in report.records:
        if record.outcome is Outcome.FAILED:
            raise UpstreamError(f"request {record.id} failed: {record.error}; so nothing can be compared")
    return report


def _values(records: Sequence[Record]) -> Values:
    summary = summarize(records)
    return {key: getattr(summary, key) for key in KEYS}


def _mean(runs: Sequence[Sequence[Record]]) -> Values:
    found = [_values(records) for records in runs]
    values = {key: measured(each[key] for each in found) for key in KEYS}
    return {key: fmean(each) if each else None for key, each in values.items()}

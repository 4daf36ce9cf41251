"""Checks the choice on this machine's own engine: prediction against measurement."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headway.core.record import Outcome, Record
from headway.core.slo import NO_TARGETS
from headway.errors import VLLM_COMES_BY, ConfigError, UpstreamError
from headway.lab.policy_bench import warm_up
from headway.lab.server import free_port, why_not_ready
from headway.loadgen import ReplayOptions, ReplayReport, replay
from headway.planner.deploy import arguments, command, deployed, records_of_engines, vllm_flags
from headway.planner.machine import Configuration, Machine
from headway.planner.planner import PlannedDeployment
from headway.planner.preparation import Prepared
from headway.planner.replay_setup import (
    MODEL,
    EngineView,
    ServingOverhead,
    check_requests,
    engine_view,
    scaled_down,
    serving_overhead,
    set_up_replay,
)
from headway.predict.steps.hardware import is_cost_file
from headway.results import COLUMNS, summarize
from headway.results.records import read_records
from headway.results.tables import MISSING
from headway.statistics import known, mean
from headway.traces import TraceRequest

PROFILE_SECONDS = 20
KEYS = ("mean_jct_s", "p99_jct_s", "mean_ttft_s", "mean_tbt_s", "goodput")

Tell = Callable[[str], None]
Values = dict[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """The measurement of half of the requests in the engine, and the predictions for them.

    `predicted` includes the overhead of serving, as the other half shows it; `by_profile` does not. Errors are
    predicted / achieved - 1, for goodput the difference in points; None if not measured. `at_client` is the client's
    view, whose times count from when a request was to be sent; the client shares the cores, and was up to
    `client_late_s` late.
    """

    configuration: Configuration
    words: tuple[str, ...]
    requests: int
    rate_rps: float
    served: ServingOverhead
    predicted: Values
    by_profile: Values
    achieved: Values
    at_client: Values
    client_late_s: float

    def errors(self, predicted: Mapping[str, float | None]) -> Values:
        """Prediction errors."""
        return {key: _error(key, predicted[key], self.achieved[key]) for key in KEYS}

    def to_dict(self) -> dict[str, Any]:
        """The check for scripts."""
        return {
            "configuration": asdict(self.configuration),
            "command": command(self.words),
            "requests": self.requests,
            "rate_rps": self.rate_rps,
            "served": asdict(self.served),
            "predicted": self.predicted,
            "achieved": self.achieved,
            "at_client": self.at_client,
            "client_late_s": self.client_late_s,
            "errors": self.errors(self.predicted),
            "by_profile": self.by_profile,
            "errors_by_profile": self.errors(self.by_profile),
        }


def _error(key: str, predicted: float | None, achieved: float | None) -> float | None:
    if predicted is None or achieved is None:
        return None
    if key == "goodput":
        return predicted - achieved
    return predicted / achieved - 1 if achieved else None


def check_verifiable(prepared: Prepared) -> None:
    """Raise ConfigError, before a search of minutes, for a plan that could not be verified."""
    check_requests(prepared.requests)
    if prepared.request.kv_tier is not None:
        raise ConfigError(
            f"the KV tier is {prepared.request.kv_tier} with verify; accepted: one of the two, since vLLM's offloading "
            "needs a GPU"
        )
    if find_spec("vllm") is None:
        raise ConfigError(
            f"vLLM is not installed, so nothing can be deployed here; accepted with verify: {VLLM_COMES_BY}"
        )


def verify(planned: PlannedDeployment, folder: Path, seconds: float, tell: Tell) -> Verified:
    """Profile this machine (unless it was planned for), predict, deploy, replay, compare. Takes minutes.

    Every other request of a stream of about `seconds` measures the overhead of serving; the rest is compared. Raises
    ConfigError as `check_verifiable` does, UpstreamError if the deployment does not become ready or loses a request.
    """
    check_verifiable(planned.prepared)
    if not seconds > 0:
        raise ConfigError.of("verify_seconds", seconds, "more than 0")
    here = scaled_down(planned.choice)
    machine = _machine(planned, here, folder, tell)
    setup = set_up_replay(planned, here, machine, seconds)
    words = arguments(MODEL, here, NO_TARGETS)
    tell(f"deploying: {command(words)}")
    records = folder / "verify-engine.jsonl"
    with deployed(words, free_port(), folder / "verify-server.log", records) as url:
        asyncio.run(warm_up(setup.requests, ReplayOptions(url=url)))
        tell(f"serving {len(setup.requests)} requests, to compare")
        client = _replayed(url, setup.requests)
    came = _engine_view(setup.requests, records)
    served = serving_overhead(setup, came)
    calibrating = setup.calibrating

    def compared(*runs: Sequence[Record]) -> Values:
        return _mean([[record for record in records if record.id not in calibrating] for records in runs])

    return Verified(
        configuration=here,
        words=words,
        requests=len(setup.requests),
        rate_rps=setup.rate_rps,
        served=served,
        predicted=compared(*setup.simulated(came.requests, served)),
        by_profile=compared(*setup.simulated(came.requests, ServingOverhead())),
        achieved=compared(came.records),
        at_client=compared(client.records),
        client_late_s=max(client.lateness_s, default=0.0),
    )


# ---- this machine --------------------------------------------------------------------------------------


def _machine(planned: PlannedDeployment, here: Configuration, folder: Path, tell: Tell) -> Machine:
    """This machine: the planned one if that is its own cost file; else profiled now with the same sizes."""
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
    log = folder / "verify-profile.log"
    with log.open("wb") as output:
        ended = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False)
    if ended.returncode:
        raise UpstreamError(why_not_ready("this machine could not be profiled", log))
    return Machine(str(file), MODEL)


# ---- the measurement -----------------------------------------------------------------------------------


def _engine_view(requests: Sequence[TraceRequest], records: Path) -> EngineView:
    """The engines' view of answered requests; engines write a request's record before they answer its end."""
    written = [file for file in records_of_engines(records) if file.stat().st_size]
    return engine_view(requests, chain.from_iterable(map(read_records, written)))


def _replayed(url: str, requests: Sequence[TraceRequest]) -> ReplayReport:
    """The client's records of all requests. Raises UpstreamError if one failed."""
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
    values = {key: known(each[key] for each in found) for key in KEYS}
    return {key: mean(each) if each else None for key, each in values.items()}


GOODPUT = "goodput"


def verify_table(verified: Verified) -> RenderableType:
    """Predictions beside measurements, with errors; then the setting of the check."""
    table = Table(box=SIMPLE_HEAD, header_style="", title="in this machine's engine", title_justify="left")
    for heading in ("", "predicted", "achieved", "error", "by the\nprofile alone", "at the\nclient"):
        table.add_column(heading, justify="right" if heading else "left", vertical="bottom")
    errors = [verified.errors(each) for each in (verified.predicted, verified.by_profile)]
    for key in KEYS:
        if verified.achieved[key] is not None:
            shown = (_value(verified.predicted[key]), _value(verified.achieved[key]))
            off = [_shown_error(key, each[key]) for each in errors]
            table.add_row(Text(COLUMNS[key].heading), *shown, *off, _value(verified.at_client[key]))
    served = verified.served
    lines = (
        f"{verified.requests:,} requests at {verified.rate_rps:.3g} a second; serving makes steps "
        f"{served.step_factor:.2f} times as long as profiled and {served.step_s * 1e3:.1f} ms more, and adds "
        f"{served.first_token_s * 1e3:.1f} ms to the first token (as every other one tells; the rest is compared); "
        "the client sent its requests up to "
        f"{verified.client_late_s * 1e3:.0f} ms late",
        f"deployed: {command(verified.words)}",
    )
    return Group(table, *map(Text, lines))


def _value(value: float | None) -> str:
    return MISSING if value is None else f"{value:.3f}"


def _shown_error(key: str, error: float | None) -> str:
    if error is None:
        return MISSING
    return f"{error:+.3f}" if key == GOODPUT else f"{error:+.1%}"

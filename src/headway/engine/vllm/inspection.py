"""Inspects the installed vLLM and its devices: `python -m headway.engine.vllm.inspection`.

Runs in a process of its own, since importing a broken vLLM may end the process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources

from headway.errors import SeamError

_IMPORT_S = 120.0
"""A first import from a cold disk takes half a minute."""


@dataclass(frozen=True, slots=True)
class FeatureState:
    """One feature of `seams.PATCHES`: its missing and changed names, and what an operator has `without` it."""

    name: str
    without: str
    lacking: tuple[str, ...]

    @property
    def works(self) -> bool:
        """Whether every name exists as in a tested version."""
        return not self.lacking


@dataclass(frozen=True, slots=True)
class Inspected:
    """One vLLM: its version, the features for its kind of device, and the devices it sees."""

    version: str
    features: tuple[FeatureState, ...]
    devices: tuple[str, ...]


def inspect_vllm() -> Inspected:
    """Import the installed vLLM in a separate process and inspect it; takes seconds.

    Raises SeamError, with the process's last words, if vLLM cannot be imported.
    """
    environment = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"}
    command = [sys.executable, "-m", __name__]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_IMPORT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise SeamError(f"vLLM could not be imported within {_IMPORT_S:g} s") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"it ended with code {done.returncode}"])[-1]
        raise SeamError(f"vLLM cannot be imported: {last}")
    told = json.loads(done.stdout.splitlines()[-1])
    features = tuple(FeatureState(**{**each, "lacking": tuple(each["lacking"])}) for each in told["features"])
    return Inspected(told["version"], features, tuple(told["devices"]))


@cache
def compatibility() -> dict[str, dict[str, str]]:
    """Tested version -> feature of vLLM -> `policy`, `stock order` or `refused`, as `bench/right/versions.py` found."""
    text = (resources.files("headway.engine.vllm") / "compatibility.json").read_text()
    table: dict[str, dict[str, str]] = json.loads(text)
    return table


def _inspected() -> Inspected:
    """Inspect the vLLM in this process."""
    import vllm
    from vllm.platforms import current_platform

    from headway.engine.vllm.seams import PATCHES, changed, missing

    on_cpu = bool(current_platform.is_cpu())
    features = dict.fromkeys(patch.feature for patch in PATCHES)
    found = tuple(
        FeatureState(feature.name, feature.without, (*missing(feature), *changed(feature)))
        for feature in features
        if on_cpu or not feature.on_cpu
    )
    return Inspected(vllm.__version__, found, () if on_cpu else _devices())


def _devices() -> tuple[str, ...]:
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return tuple(
        f"{torch.cuda.get_device_name(index)}, {torch.cuda.get_device_properties(index).total_memory / 2**30:.0f} GiB"
        for index in range(count)
    )


if __name__ == "__main__":
    print(json.dumps(asdict(_inspected())))

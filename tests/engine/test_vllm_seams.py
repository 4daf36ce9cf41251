"""vLLM without one of the names that Headway uses: stock vLLM starts, and Headway without the feature, or not, by name.

One process imports vLLM and forks another for each name, which is gone there.
"""

from __future__ import annotations

import functools
import inspect
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from vllm import plugins
from vllm.config import KVTransferConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.core.sched.scheduler import Scheduler

from headway.engine import HeadwayScheduler
from headway.engine.demo_model import ensure_demo_random
from headway.engine.host_kv import HostKv
from headway.engine.model_free import engine_config, make_scheduler
from headway.engine.servers.server_command import SCHEDULER
from headway.engine.vllm import plugin
from headway.engine.vllm import seams as vllm_seams
from headway.engine.vllm.seams import (
    CONNECTORS,
    CPU_ASYNC,
    CPU_TILES,
    HINTS,
    NOTICING,
    PATCHES,
    SCHEDULING,
    SWAPS,
    TESTED,
    Feature,
)
from headway.errors import HeadwayError

pytestmark = pytest.mark.vllm

ROOT = Path(__file__).parents[2]


# ---- in the process of its own ---------------------------------------------------------------------


def delete(target: str) -> None:
    """Take a name out of vLLM, as a version does that has renamed it: vLLM's own modules still find what they use."""
    owner, name = vllm_seams._owner(target)
    if isinstance(owner, ModuleType):
        left = {key: value for key, value in vars(owner).items() if key != name}
        sys.modules[owner.__name__] = ModuleType(owner.__name__)
        vars(sys.modules[owner.__name__]).update(left)
        return
    if name in vars(owner):
        delattr(owner, name)
    code = getattr(inspect.unwrap(owner.__init__), "__code__", None)
    if (
        code is not None and name in code.co_names
    ):  # set by `__init__`, with or without a default of the class
        made = owner.__init__

        def make(self: Any, *args: Any, **kwargs: Any) -> None:
            made(self, *args, **kwargs)
            delattr(self, name)

        # By the names in its code Headway knows what `__init__` sets.
        others = (each for each in inspect.unwrap(made).__code__.co_names if each != name)
        make.__code__ = make.__code__.replace(co_names=(*make.__code__.co_names, *others))
        owner.__init__ = make


def change(target: str) -> None:
    """Put other words for the same in the place of a name."""
    owner, name = vllm_seams._owner(target)
    original = getattr(owner, name)
    setattr(owner, name, lambda *args, **kwargs: original(*args, **kwargs))


class Warnings(logging.Handler):
    """Collects Headway's warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.told.append(record.getMessage())


def replaced() -> list[str]:
    """The targets that are not vLLM's own any more."""
    found = ((patch.target, vllm_seams._find(patch.target)) for patch in PATCHES if patch.by)
    return [name for name, each in found if hasattr(each, "__wrapped__") or hasattr(each, "headway_ask")]


def started(edit: Callable[[str], None], target: str, stock: Any, ours: Any) -> dict[str, Any]:
    """Start stock vLLM, then Headway, in this process after an edit of vLLM: what is patched and what is said."""
    warnings = Warnings()
    logging.getLogger("headway").addHandler(warnings)
    edit(target)
    plugins.plugins_loaded = False
    plugins.load_general_plugins()
    AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
    make_scheduler(Scheduler, stock, num_blocks=64)
    answer = {"stock": {"warned": list(warnings.told), "patched": replaced()}}
    # As the front end makes its configuration, but for the second that this takes.
    config = plugin.notices_scheduler(lambda _: ours)(None)
    refusal = None
    try:
        make_scheduler(HeadwayScheduler, config, num_blocks=64)
    except HeadwayError as error:
        refusal = str(error)
    return answer | {"headway": {"warned": warnings.told, "patched": replaced(), "refusal": refusal}}


def in_a_fork(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result of `work` in a fork of this process."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            answer = work()
        except BaseException as error:
            answer = {"died": f"{type(error).__name__}: {error}"}
        with os.fdopen(writing, "w") as telling:
            json.dump(answer, telling)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as hearing:
        told: dict[str, Any] = json.load(hearing)
    os.waitpid(child, 0)
    return told


def main() -> None:
    """Print, for each edit of each target, what became of vLLM, one JSON object a line."""
    os.environ[plugin.CPU_ASYNC_SWITCH] = "1"
    plugins.plugins_loaded = True  # nothing of Headway's is put in before the forks
    limits: dict[str, Any] = {"max_num_seqs": 32, "max_num_batched_tokens": 512}
    model = str(ensure_demo_random())
    stock, plain, swapping = (
        engine_config(model, host_kv=host_kv, **limits) for host_kv in (None, None, HostKv(blocks=8))
    )
    example = KVTransferConfig(kv_connector="ExampleConnector", kv_role="kv_both")
    connected = engine_config(model, kv_transfer_config=example, **limits)
    for config in (plain, swapping, connected):
        config.scheduler_config.scheduler_cls = SCHEDULER
    swapping.additional_config = {"headway": {"policy": "fastserve"}}
    inspect.getsource = functools.cache(inspect.getsource)  # type: ignore[assignment]
    for feature in FEATURES:
        vllm_seams.changed(feature)  # imports and reads what every fork would
    for edit, target in EDITS:
        needing = features_of(target)
        ours = swapping if SWAPS in needing else connected if CONNECTORS in needing else plain
        work = functools.partial(started, edit, target, stock, ours)
        print(json.dumps([edit.__name__, target, in_a_fork(work)]), flush=True)


# ---- the tests -------------------------------------------------------------------------------------

FEATURES = tuple(dict.fromkeys(patch.feature for patch in PATCHES))
OPTIONAL = [feature for feature in FEATURES if feature is not SCHEDULING]
BY_STOCK_TOO = (HINTS, NOTICING, CPU_TILES, CPU_ASYNC)
"""Features that a process gets before it is known who schedules, the last for tests alone."""
REPLACED = [patch for patch in PATCHES if patch.by]
EDITS = [
    *dict.fromkeys((delete, patch.target) for patch in PATCHES if not patch.not_everywhere),
    *((change, patch.target) for patch in REPLACED if patch.digests),
]


def features_of(target: str) -> list[Feature]:
    """Those that need a name, the first in the table first."""
    return [patch.feature for patch in PATCHES if patch.target == target]


def targets(*features: Feature) -> set[str]:
    """Those that these features replace."""
    return {patch.target for patch in REPLACED if patch.feature in features}


def check_stock(target: str, stock: dict[str, Any]) -> None:
    """Stock starts with two patches and those of switches, less the target's; it warns of those features alone."""
    needing = features_of(target)
    assert set(stock["patched"]) == targets(*BY_STOCK_TOO) - targets(*needing)
    warned = [feature for feature in needing if feature in BY_STOCK_TOO]
    assert len(stock["warned"]) == len(warned)
    assert all(text.endswith(warned[0].without) for text in stock["warned"])


def check_optional(target: str, ours: dict[str, Any]) -> None:
    """Headway starts without the feature, and says once what that means, with all others.

    Where the configuration starts the KV connector of another package, it refuses to.
    """
    feature = features_of(target)[0]
    (warned,) = (text for text in ours["warned"] if text.startswith(f"Headway leaves out {feature.name}: "))
    assert warned.endswith(feature.without)
    assert target.partition(":")[2] not in warned
    if feature is CONNECTORS:
        assert "lacks or changed what Headway needs beside the KV connector" in ours["refusal"]
        return
    assert ours["refusal"] is None
    within = [patch.feature for patch in PATCHES if patch.target.startswith(target)]
    assert set(ours["patched"]) == targets(*OPTIONAL) - targets(*within)


def check_needed(target: str, ours: dict[str, Any]) -> None:
    """Headway refuses to start, by the name."""
    assert target in ours["refusal"]
    assert ours["refusal"].endswith(f"; tested: {', '.join(sorted(TESTED))}")


@pytest.mark.engine
@pytest.mark.timeout(900)
def test_without_any_one_name_stock_vllm_starts_and_headway_says_what_it_lacks() -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HEADWAY_")}
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.test_vllm_seams"],
        env=environment | {"VLLM_LOGGING_LEVEL": "ERROR"},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    wrong = []
    for edit, target, answer in answers:
        try:
            check_stock(target, answer["stock"])
            (check_needed if SCHEDULING in features_of(target) else check_optional)(target, answer["headway"])
        except (AssertionError, KeyError, TypeError, ValueError) as error:
            wrong.append((edit, target, answer, repr(error)))
    assert not wrong
    assert [(edit, target) for edit, target, _ in answers] == [(edit.__name__, name) for edit, name in EDITS]


if __name__ == "__main__":
    main()

"""Every preset with every feature of the vLLM that is imported, on its scheduler without a model.

`bench/right/versions.py` runs this in a process for each version. Requests share prefixes, have targets, priorities and
predicted lengths; blocks are short, so that requests are preempted. All presets but `vllm` run in a batch narrower than
the worker slots, so that requests pause. Under each feature preset `vllm` is compared with stock, step by step. A run
has to meet what its feature is about, or it proves nothing.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # vLLM logs to stdout, which is for data here
sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script, only this folder is on the path

import vllm
from vllm.config import KVTransferConfig
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request

from bench.command import command_line
from bench.right.conformance import make_script
from headway.core.plan import Reason
from headway.engine.demo_model import ensure_demo_random
from headway.engine.host_kv import HostKv
from headway.engine.model_free import (
    ModelFreeEngine,
    ScriptedRequest,
    StepLog,
    engine_config,
    headway_builder,
    make_scheduler,
    to_request,
)
from headway.engine.scheduler import PolicyScheduler
from headway.engine.self_check import compare_logs, stock_builder
from headway.engine.start import build_scheduler
from headway.engine.vllm import seams as vllm_seams
from headway.errors import ConfigError
from headway.policies.presets import known_presets

if TYPE_CHECKING:
    from headway.engine.scheduler import PolicyScheduler

NUM_BLOCKS = 64
NARROW = 6
"""Batch width, a quarter of the worker slots, so that requests may pause; preset `vllm` has stock's."""
MAX_STEPS = 4_000
DRAFTS = 3
ADAPTERS, LORA_SLOTS = 4, 2
ENCODER_TOKENS = 60
IMAGE_TOKENS = 40
POLICY, STOCK_ORDER, REFUSED, FAILED = "policy", "stock order", "refused", "failed"

Evidence = Callable[["PolicyScheduler"], int]
"""Counts how often a scheduler met what a feature is about."""


def met_nothing_special(scheduler: PolicyScheduler) -> int:
    """The number of steps."""
    return int(scheduler.counters.steps)


def met(reason: str) -> Evidence:
    """Differences with one reason."""
    return lambda scheduler: int(scheduler.counters.differences[Reason(reason)])


def met_held_prompts(scheduler: PolicyScheduler) -> int:
    """Prompts that waited for the interval; steps where this vLLM has no interval for a single engine."""
    if not hasattr(scheduler, "local_prefill_interval"):
        return met_nothing_special(scheduler)
    return met("engine_paused")(scheduler)


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """One way to run the scheduler: vLLM's options, what requests carry, and the evidence that the feature was met.

    Without `asynchronous` both ways of scheduling are run.
    """

    vllm: Mapping[str, Any] = field(default_factory=dict)
    asynchronous: bool | None = None
    adapters: bool = False
    images: bool = False
    host_blocks: int = 0
    evidence: Evidence = met_nothing_special


_LORA = {"enable_lora": True, "max_loras": LORA_SLOTS, "max_cpu_loras": ADAPTERS}
_NGRAM = {"method": "ngram", "num_speculative_tokens": DRAFTS, "prompt_lookup_max": 3}

FEATURES = {
    "synchronous scheduling": Feature(asynchronous=False),
    "asynchronous scheduling": Feature(asynchronous=True),
    "prefix caching": Feature(vllm={"enable_prefix_caching": True}),
    "LoRA, more adapters than slots": Feature(vllm=_LORA, adapters=True, evidence=met("lora")),
    "`--prefill-schedule-interval`": Feature(
        vllm={"prefill_schedule_interval": 4}, evidence=met_held_prompts
    ),
    "images, a small encoder budget": Feature(images=True, evidence=met("encoder")),
    "drafts (n-gram)": Feature(
        vllm={"speculative_config": _NGRAM},
        asynchronous=False,
        evidence=lambda scheduler: int(10 * (scheduler.view.decoded_tokens - 1)),
    ),
    "KV on the host": Feature(
        vllm={"enable_prefix_caching": True},
        host_blocks=60,
        evidence=lambda scheduler: int(scheduler.counters.swaps),
    ),
}

_EXAMPLE = {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}
OPTIONS: dict[str, Mapping[str, Any]] = {
    "`--kv-transfer-config` with another's connector": {"kv_transfer_config": KVTransferConfig(**_EXAMPLE)},
    "`--kv-offloading-size`": {"kv_offloading_size": 0.125},
    "`--scheduling-policy priority`": {"scheduling_policy": "priority"},
    "`--runner pooling`": {"runner": "pooling"},
    "`--no-enable-chunked-prefill`": {"enable_chunked_prefill": False, "max_num_batched_tokens": 4096},
}
"""Options with which the scheduler either starts or is refused by name; it serves nothing with them here."""


@dataclass(slots=True)
class FeatureCell:
    """Result of the runs of one feature, or of one preset with it.

    `unended` requests were lost or are left over, `leaked` are KV blocks that were not freed. `taken_over` are runs
    that ended in stock's order in the policy's place, `unlike_stock` steps in which preset `vllm` decided otherwise
    than stock.
    """

    runs: int = 0
    steps: int = 0
    unexplained: int = 0
    watchdog_faults: int = 0
    policy_faults: int = 0
    unended: int = 0
    leaked: int = 0
    taken_over: int = 0
    unlike_stock: int = 0
    evidence: int = 0
    errors: list[str] = field(default_factory=list)

    @property
    def wrong(self) -> int:
        """The number of faults."""
        faults = self.unexplained + self.watchdog_faults + self.policy_faults + self.unended + self.leaked
        return faults + self.taken_over + self.unlike_stock + len(self.errors)

    @property
    def served(self) -> str:
        """The order in which requests were served, in words."""
        if self.errors:
            return FAILED
        return STOCK_ORDER if self.taken_over else POLICY


class ScriptedDrafts(ModelFreeEngine):
    """Drafts after every token of an answer, the first of which is right; none where the scheduler wants none."""

    def compute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """Compute tokens, and the draft that was right."""
        computed = super().compute(output)
        for request_id, tokens in zip(computed.req_ids, computed.sampled_token_ids, strict=True):
            if tokens and output.scheduled_spec_decode_tokens.get(request_id):
                tokens.append(7)
        return computed

    def process_oldest(self) -> None:
        """Process the step, then draft for the requests still there."""
        output, _ = self._in_flight[0]
        super().process_oldest()
        if self.scheduler.num_spec_tokens:
            live = [one for one in output.num_scheduled_tokens if one in self.scheduler.requests]
            self.scheduler.update_draft_token_ids(DraftTokenIds(live, [[7] * DRAFTS for _ in live]))


def request_of(scripted: ScriptedRequest, feature: Feature, index: int) -> Request:
    """vLLM's request with the adapter or the image that the feature is about; every third has none."""
    request = to_request(scripted)
    adapter = index % ADAPTERS + 1
    if feature.adapters and index % 3:
        request.lora_request = LoRARequest(f"adapter-{adapter}", adapter, "nowhere")
    if feature.images and index % 3 and request.num_prompt_tokens > IMAGE_TOKENS:
        place = PlaceholderRange(request.num_prompt_tokens - IMAGE_TOKENS, IMAGE_TOKENS)
        request.mm_features = [MultiModalFeatureSpec(None, "image", scripted.id, place)]
    return request


def replay(
    build: Callable[..., Any], feature: Feature, script: Sequence[ScriptedRequest], *, asynchronous: bool
) -> tuple[Any, list[StepLog]]:
    """Serve the script with a fresh scheduler of this kind; return it with the log of every step."""
    config = engine_config(
        str(ensure_demo_random()),
        host_kv=HostKv(blocks=feature.host_blocks) if feature.host_blocks else None,
        **{"max_num_seqs": 24, "max_num_batched_tokens": 512, "enable_prefix_caching": False, **feature.vllm},
    )
    config.scheduler_config.async_scheduling = asynchronous
    scheduler = make_scheduler(build, config, NUM_BLOCKS)
    if feature.images:
        scheduler.encoder_cache_manager = EncoderCacheManager(cache_size=10_000)
        scheduler.max_num_encoder_input_tokens = ENCODER_TOKENS
    engine = ScriptedDrafts(scheduler, 2 if asynchronous else 1, copy_steps=2 if feature.host_blocks else 0)
    return scheduler, list(_steps(engine, feature, script))


def _steps(engine: ModelFreeEngine, feature: Feature, script: Sequence[ScriptedRequest]) -> Iterator[StepLog]:
    arrivals = list(enumerate(script))[::-1]
    for step in range(MAX_STEPS):
        while arrivals and arrivals[-1][1].arrival_step <= step:
            index, scripted = arrivals.pop()
            engine.expect(scripted)
            engine.scheduler.add_request(request_of(scripted, feature, index))
        if not arrivals and not engine.scheduler.has_requests():
            break
        yield engine.step()
    engine.drain()


def run(
    preset: str, feature: Feature, script: Sequence[ScriptedRequest], cell: FeatureCell, *, asynchronous: bool
) -> None:
    """Serve the script under a preset, and add the result to the cell."""
    width = None if preset == "vllm" else NARROW
    builder = headway_builder(policy=preset, batch_width=width)
    cell.runs += 1
    try:
        scheduler, log = replay(builder, feature, script, asynchronous=asynchronous)
    except Exception as error:
        cell.errors.append(f"{preset}: {type(error).__name__}: {error}")
        return
    counters, ledger = scheduler.counters, scheduler.ledger
    cell.steps += counters.steps
    cell.unexplained += counters.differences["unexplained"]
    cell.watchdog_faults += counters.watchdog_faults
    cell.policy_faults += counters.policy_faults
    cell.unended += len(script) - ledger.ended.total() + ledger.live
    cell.leaked += scheduler.view.total_blocks - scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    cell.taken_over += scheduler.guard.fell_back
    cell.evidence += feature.evidence(scheduler)
    if preset == "vllm" and not feature.host_blocks:
        _, stock = replay(stock_builder(asynchronous), feature, script, asynchronous=asynchronous)
        parity = compare_logs(stock, log)
        cell.unlike_stock += parity.steps - parity.same_steps


def feature_row(name: str, presets: Sequence[str], script: Sequence[ScriptedRequest]) -> dict[str, Any]:
    """One feature under all presets."""
    feature, total = FEATURES[name], FeatureCell()
    wrong: dict[str, int] = {}
    modes = (False, True) if feature.asynchronous is None else (feature.asynchronous,)
    for preset in presets:
        before = total.wrong
        for asynchronous in modes:
            run(preset, feature, script, total, asynchronous=asynchronous)
        if total.wrong > before:
            wrong[preset] = total.wrong - before
    if not total.evidence:
        total.errors.append("the runs prove nothing: the feature was never met")
    return {**asdict(total), "served": total.served, "wrong": wrong}


def option_row(options: Mapping[str, Any]) -> str:
    """Whether Headway starts with these options of vLLM, and the order in which it then serves."""
    config = engine_config(str(ensure_demo_random()), **options)
    config.additional_config = {"headway": {"policy": "headway"}}
    try:
        scheduler = make_scheduler(build_scheduler, config, NUM_BLOCKS)
    except ConfigError:
        return REFUSED
    except Exception as error:
        print(f"vLLM {vllm.__version__} with {options}: {type(error).__name__}: {error}", file=sys.stderr)
        return FAILED
    ordered = isinstance(scheduler, PolicyScheduler) and scheduler.guard.policy.name == "headway"
    return POLICY if ordered else STOCK_ORDER


def names() -> dict[str, list[str]]:
    """The vLLM names in use that are gone or changed in this version."""
    features = {patch.feature for patch in vllm_seams.PATCHES}
    gone = [name for feature in features for name in vllm_seams.missing(feature)]
    changed = [name for feature in features for name in vllm_seams.changed(feature)]
    return {"gone": sorted(gone), "changed": sorted(changed)}


def main() -> int:
    """Print `{"version": V, "names": ..., "features": {name: cell}, "options": {name: "refused"}}`."""
    parser = command_line(__doc__)
    parser.add_argument("--requests", type=int, default=24, help="requests a run (default 24)")
    parser.add_argument("--presets", default="", help="only these, comma-separated (default all there are)")
    arguments = parser.parse_args()
    presets = arguments.presets.split(",") if arguments.presets else list(known_presets())
    script = [each.request for each in make_script(arguments.requests, seed=3)]
    rows = {}
    for name in FEATURES:
        print(f"vLLM {vllm.__version__}: {name} ...", file=sys.stderr)
        rows[name] = feature_row(name, presets, script)
    options = {name: option_row(each) for name, each in OPTIONS.items()}
    found = {"version": vllm.__version__, "names": names(), "features": rows, "options": options}
    print(json.dumps(found))
    return int(any(row["wrong"] or row["errors"] for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())

"""FastServe's halves apart: its queues (Fig. 10), its KV (Fig. 11), more GPUs, and the later curve per token."""

from __future__ import annotations

from headway.lab.policy_choice import label
from headway.results.study import StudyPart, StudyTable, Value
from headway.results.svg import Points
from headway.traces import NAMED_LAWS
from headway_reproduce.fastserve.end_to_end import (
    AXIS_HEADINGS,
    FastServeFindings,
    largest,
    mean_jct_s,
    p99_jct_s,
    said,
    sensitivity,
)
from headway_reproduce.fastserve.setting import (
    ABLATED,
    BATCH,
    CV_AXIS,
    DEFER,
    FASTSERVE,
    FCFS,
    FIXED_PRIORITY,
    LOAD,
    ORCA,
    OVERLOAD,
    PAPER_DEFER_GAIN,
    PAPER_FIXED_GAIN,
    PAPER_PEAK_KV,
    PAPER_PER_TOKEN_S,
    PAPER_REACTIVE_GAIN,
    PAPER_V3_REACTIVE_GAIN,
    PAPER_V3_RECOMPUTE_GAIN,
    PER_TOKEN,
    RATE_AXIS,
    REACTIVE,
    RECOMPUTE,
    RELEASED,
    SCALED,
    SCHEDULERS,
    SHAREGPT,
    SINGLE,
    SMALL,
    VLLM_V0,
    FastServePoint,
    loaded,
    with_quantum,
    with_starvation,
)
from headway_reproduce.study import chart, ratio, short
from headway_reproduce.study_runs import summary_key

LATENCIES = (mean_jct_s, p99_jct_s)


class Scheduler(FastServeFindings):
    """FastServe's queues against others, and against the choice of their first quantum (Fig. 10)."""

    def points(self) -> dict[float, FastServePoint]:
        """Load -> point of the ablation."""
        return {load: loaded(ABLATED, load, self.capacity_rps) for load in self.scope.scheduler_loads}

    def part(self) -> StudyPart:
        """Mean completion time against the first quantum, and other orders of the same engine."""
        points, found = self.points(), self.sensitivities()
        tables = [self._quantum_table(points)]
        if self.scope.starve_s:
            tables.append(self._starvation_table(points))
        if self.scope.other_orders:
            tables.append(self._orders_table(points))
        shown = ", ".join(
            f"{label(policy)} {value:.2f}" for policy, value in found.items() if value is not None
        )
        return StudyPart(
            title="The scheduler alone (Fig. 10)",
            text=[
                f"Largest mean over least, among the first quanta: {shown}. In the paper fastserve is insensitive."
            ],
            tables=tables,
            charts=[
                chart(
                    f"fig10-{load:g}",
                    f"Mean JCT at load {load:g}, {SINGLE.title}",
                    {label(policy): self._swept(point, policy) for policy in SCHEDULERS},
                    "first quantum (decode steps), simulated",
                    "seconds",
                )
                for load, point in points.items()
            ],
        )

    def _swept(self, point: FastServePoint, policy: str) -> Points:
        """(quantum, mean JCT)."""
        return [
            (quantum, self.mean(with_quantum(point, policy, quantum), policy, mean_jct_s))
            for quantum in self.scope.quanta
        ]

    def _quantum_table(self, points: dict[float, FastServePoint]) -> StudyTable:
        rows: list[list[Value]] = []
        for load, point in points.items():
            for policy in SCHEDULERS:
                means = [mean for _, mean in self._swept(point, policy)]
                rows.append([f"{load:g}", label(policy), *means, sensitivity(means)])
        return self.table(
            "fig10-quanta",
            f"Mean job completion time in seconds against the first quantum ({SINGLE.title})",
            ["load", "policy", *(f"q1 x {each:g}" for each in self.scope.quanta), "most / least"],
            rows,
            f"q1 is the time of a decode step of one job, {1e3 * SINGLE.decode_step_s():.1f} ms.",
            keys=2,
        )

    def _starvation_table(self, points: dict[float, FastServePoint]) -> StudyTable:
        rows: list[list[Value]] = []
        for load, point in points.items():
            for starve_s in self.scope.starve_s:
                starved = with_starvation(point, starve_s)
                means = [self.mean(starved, FASTSERVE, number) for number in LATENCIES]
                rows.append([f"{load:g}", f"{starve_s:g}", *means])
        return self.table(
            "starvation",
            f"How long a job waits before it is promoted ({SINGLE.title})",
            ["load", "seconds", "mean JCT s", "p99 JCT s"],
            rows,
            "The later version's text has 0.3 s; the released code 3 s, which is the preset's.",
            keys=2,
        )

    def _orders_table(self, points: dict[float, FastServePoint]) -> StudyTable:
        rows: list[list[Value]] = []
        for load, point in points.items():
            for policy in (FASTSERVE, *self.scope.other_orders):
                paper = PAPER_FIXED_GAIN if policy == FIXED_PRIORITY else None
                numbers = [self.mean(point, policy, number) for number in LATENCIES]
                rows.append([f"{load:g}", label(policy), *numbers, self.gain(point, policy), paper])
        return self.table(
            "orders",
            f"Other orders ({SINGLE.title})",
            ["load", "policy", "mean JCT s", "p99 JCT s", "over fastserve's mean", "paper: up to"],
            rows,
            "The paper's gain over fixed priority is of its later version, over shares of prompts and answers.",
            keys=2,
        )

    def sensitivities(self) -> dict[str, float | None]:
        """Policy -> the largest mean JCT over the least among the quanta, at the load where that is most."""
        found: dict[str, float | None] = {}
        for policy in SCHEDULERS:
            swept = [self._swept(point, policy) for point in self.points().values()]
            each = [sensitivity(mean for _, mean in means) for means in swept]
            found[policy] = short(max((value for value in each if value is not None), default=None))
        return found


# ---- KV ------------------------------------------------------------------------------------------------

_PAPER = {
    DEFER: f"up to {PAPER_DEFER_GAIN}",
    REACTIVE: f"up to {PAPER_REACTIVE_GAIN}, in its later version {PAPER_V3_REACTIVE_GAIN}",
    RECOMPUTE: f"in its later version up to {PAPER_V3_RECOMPUTE_GAIN}",
}
_SLOT_NAMES = {"idle_jobs": "K, slots kept free", "burst_levels": "K', levels that foretell a burst"}


class MemoryFindings(FastServeFindings):
    """FastServe's KV management against others, against the slots it keeps free (Fig. 11), and its peak of KV."""

    def axes(self) -> dict[str, dict[float, FastServePoint]]:
        """Axis -> setting -> point, of the axes that are run."""
        found = {axis: self.scope.memory(axis, self.capacity_rps) for axis in (RATE_AXIS, CV_AXIS)}
        return {axis: points for axis, points in found.items() if points}

    def part(self) -> StudyPart:
        """Four ways with KV, the slots kept free, and how much KV there is at once."""
        axes, policies = self.axes(), self.scope.memories
        points = list(dict.fromkeys(point for found in axes.values() for point in found.values()))
        text = [
            f"Over {over}: {said(self.gains(points, over))}; in the paper {_PAPER[over]}."
            for over in policies[1:]
        ]
        curves = {policy: policy for policy in policies}
        return StudyPart(
            title="KV management alone (Fig. 11)",
            text=[*text, self._said_of_slots(), *self.unfinished(points, policies)],
            tables=[
                *(self._axis_table(axis, found) for axis, found in axes.items()),
                self._slots_table(),
                self._peak_table(),
            ],
            charts=[
                self.jct_chart(
                    f"fig11-{axis}", SINGLE, found, curves, AXIS_HEADINGS[axis], doubling=axis == CV_AXIS
                )
                for axis, found in axes.items()
            ],
        )

    def _axis_table(self, axis: str, points: dict[float, FastServePoint]) -> StudyTable:
        policies = self.scope.memories
        rows: list[list[Value]] = []
        for setting, point in points.items():
            means = [self.mean(point, policy, mean_jct_s) for policy in policies]
            gains = [self.gain(point, over) for over in policies[1:]]
            swaps = [round(self.count(point, policy, "swaps")) for policy in (FASTSERVE, REACTIVE)]
            rows.append([f"{setting:g}", *means, *gains, *swaps])
        over = [f"over {policy}" for policy in policies[1:]]
        return self.table(
            f"fig11-{axis}",
            f"Mean job completion time in seconds, and fastserve's gains ({SINGLE.title})",
            [AXIS_HEADINGS[axis], *policies, *over, f"swaps, {FASTSERVE}", f"swaps, {REACTIVE}"],
            rows,
        )

    def _slots_table(self) -> StudyTable:
        rows: list[list[Value]] = []
        for (name, value), point in self.scope.slot_points(self.capacity_rps).items():
            means = [self.mean(point, FASTSERVE, number) for number in LATENCIES]
            rows.append([_SLOT_NAMES[name], value, *means, round(self.count(point, FASTSERVE, "swaps"))])
        return self.table(
            "slots",
            f"Slots that fastserve keeps free, at load {OVERLOAD:g} ({SINGLE.title})",
            ["setting", "value", "mean JCT s", "p99 JCT s", "swaps"],
            rows,
            "One is varied, the other as it stands: K a batch, K' 2.",
            keys=2,
        )

    def _slots(self) -> dict[str, dict[str, float | None]]:
        """Setting -> value -> mean JCT in seconds."""
        found: dict[str, dict[str, float | None]] = {name: {} for name in _SLOT_NAMES}
        for (name, value), point in self.scope.slot_points(self.capacity_rps).items():
            found[name][str(value)] = short(self.mean(point, FASTSERVE, mean_jct_s))
        return found

    def _said_of_slots(self) -> str:
        shown = " and ".join(
            f"{sensitivity(values.values()) or 1.0:.2f} among {len(values)} values of "
            f"{_SLOT_NAMES[name].split(',')[0]}"
            for name, values in self._slots().items()
            if values
        )
        return f"Largest mean over least: {shown}. In the paper both hardly matter."

    def _peak_table(self) -> StudyTable:
        rows: list[list[Value]] = []
        for name, point in self.scope.peaks(self.capacity_rps).items():
            theirs, ours = (self.count(point, policy, "peak_kv_blocks") for policy in (FCFS, FASTSERVE))
            rows.append([name, round(theirs), round(ours), ratio(ours, theirs), PAPER_PEAK_KV])
        return self.table(
            "peak-kv",
            f"Most KV blocks at once, on the device and the host ({SMALL.title})",
            ["arrivals", FCFS, FASTSERVE, "times", "paper: up to"],
            rows,
            "Answers of up to 20 tokens. The paper gives the rate and the CV, not its engine's batch.",
        )

    def peak_kv(self) -> float | None:
        """fastserve's peak of KV over that of first come, first served, in the paper's setting."""
        point = next(iter(self.scope.peaks(self.capacity_rps).values()))
        return short(self.ratio(point, FASTSERVE, FCFS, lambda result: float(result.meter.peak_kv_blocks)))

    def data(self) -> dict[str, object]:
        """The keys that are about memory."""
        points = [point for found in self.axes().values() for point in found.values()]
        slots = self._slots()
        return {
            "vs_defer": largest(self.gains(points, DEFER)),
            "vs_reactive": largest(self.gains(points, REACTIVE)),
            "k_sensitivity": short(sensitivity(slots["idle_jobs"].values())),
            "slots_sweep": slots,
            "peak_kv_vs_fcfs": self.peak_kv(),
        }


# ---- more GPUs, and the later curve --------------------------------------------------------------------

per_token_s = summary_key("mean_normalized_latency_s")
"""Mean over requests of completion time over answer length."""
_PUBLISHED = (VLLM_V0, FCFS, FASTSERVE)
"""Whose numbers the notebook has, in its order."""


class FastServeFurther(FastServeFindings):
    """FastServe on more GPUs, and its mean latency per token with lengths as in ShareGPT."""

    def scale_part(self) -> StudyPart | None:
        """Mean and tail on each machine; None where that is not run."""
        points = self.scope.scaled(self.capacity_rps)
        if not points:
            return None
        rows: list[list[Value]] = []
        for machine, point in points.items():
            numbers = [self.mean(point, policy, number) for number in LATENCIES for policy in SCALED]
            gains = [self.gain(point, ORCA, number) for number in LATENCIES]
            rows.append([machine.title, machine.stages, point.rate_rps, *numbers, *gains])
        shown = [f"{what}, {label(policy)}" for what in ("mean", "p99") for policy in SCALED]
        table = self.table(
            "scale",
            f"Job completion times in seconds at {LOAD:g} of each machine's own capacity",
            ["machine", "stages", "req/s", *shown, "mean, over orca", "p99, over orca"],
            rows,
            f"Stages of eight GPUs; one does not hold the model. Over orca: how many times {FASTSERVE}'s it is.",
        )
        return StudyPart(title="More GPUs", text=self.unfinished(points.values(), SCALED), tables=[table])

    def per_token_part(self) -> StudyPart | None:
        """Seconds per token against the rate, the notebook's beside ours; None where that is not run."""
        points = self.scope.per_token()
        if not points:
            return None
        headings = ["req/s"]
        rows: dict[float, list[Value]] = {rate_rps: [f"{rate_rps:g}"] for rate_rps in points}
        curves: dict[str, list[tuple[float, float | None]]] = {}
        for policy in PER_TOKEN:
            curves[policy] = [(rate, self.mean(point, policy, per_token_s)) for rate, point in points.items()]
            headings += [policy, "paper"] if policy in _PUBLISHED else [policy]
            for rate_rps, mean in curves[policy]:
                rows[rate_rps].append(mean)
                if policy in _PUBLISHED:
                    published = PAPER_PER_TOKEN_S.get(rate_rps, (None, None, None))
                    rows[rate_rps].append(published[_PUBLISHED.index(policy)])
        table = self.table(
            "per-token",
            f"Mean of completion time over answer length, seconds per token ({RELEASED.title})",
            headings,
            rows.values(),
            f"{SHAREGPT.count} requests, Poisson; prompts of up to 1,024 tokens, prompts and answers drawn "
            "independently by ShareGPT's laws. The paper's vLLM is 0.6.1, which like 0.2.5 runs prompts first.",
            decimals=3,
        )
        drawn = chart(
            "per-token",
            f"Seconds per token, {RELEASED.title}",
            curves,
            "requests per second, simulated",
            "seconds per token",
            doubling=False,
        )
        return StudyPart(
            title="Latency per token (released code)",
            text=[_said_of_the_knee(), *self.unfinished(points.values(), PER_TOKEN)],
            tables=[table],
            charts=[drawn],
        )


def _said_of_the_knee() -> str:
    """Why the curve rises where it does."""
    tokens = NAMED_LAWS[SHAREGPT.output].output.expected_tokens()
    step_s = RELEASED.decode_step_s()
    return (
        f"With answers of {tokens:.0f} tokens in the mean and steps of {1e3 * step_s:.0f} ms or more, {BATCH} at a "
        f"time get through less than {BATCH / (step_s * tokens):.2f} req/s whatever the order. In the notebook "
        "fastserve still keeps up at 3, with steps that are no shorter (35 ms a token and more): its answers must be "
        "shorter than ours, so that the same rates are more load here."
    )

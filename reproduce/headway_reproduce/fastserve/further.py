"""FastServe on more GPUs (Fig. 12), and the released code's curve of latency per token."""

from __future__ import annotations

from collections.abc import Iterable

from headway.lab.policy_choice import label
from headway.results.study import StudyPart, Value
from headway_reproduce.claims import Claim, as_trend, judged
from headway_reproduce.fastserve.cells import (
    FASTSERVE,
    FCFS,
    LOAD,
    ORCA,
    PAPER_PER_TOKEN_S,
    PER_TOKEN,
    SCALED,
    SHAREGPT,
    VLLM_V0,
    FastServePoint,
)
from headway_reproduce.fastserve.findings import LATENCIES, FastServeFindings, times
from headway_reproduce.fastserve.machine import RELEASED, PaperMachine
from headway_reproduce.study import chart
from headway_reproduce.study_runs import summary_key

per_token_s = summary_key("mean_normalized_latency_s")
"""Mean over requests of completion time over answer length."""
_PUBLISHED = (VLLM_V0, FCFS, FASTSERVE)
"""The policies in the notebook, in its order."""


class FastServeFurther(FastServeFindings):
    """FastServe on more GPUs, and its mean latency per token with lengths as in ShareGPT."""

    def points(self) -> dict[PaperMachine, FastServePoint]:
        """Machine -> point, for all machines of one model at one rate."""
        return self.scope.scaled(self.capacity_rps)

    def scale_part(self) -> StudyPart:
        """Mean and tail on each machine."""
        rows: list[list[Value]] = []
        for machine, point in self.points().items():
            numbers = [self.mean(point, policy, number) for number in LATENCIES for policy in SCALED]
            gains = [self.gain(point, ORCA, number) for number in LATENCIES]
            rows.append([machine.title, point.rate_rps, *numbers, *gains])
        shown = [f"{what}, {label(policy)}" for what in ("mean", "p99") for policy in SCALED]
        table = self.table(
            "scale",
            "Fig. 12: job completion times in seconds at one rate for each model",
            ["machine", "req/s", *shown, "mean, over orca", "p99, over orca"],
            rows,
            f"Two stages; the rate is {LOAD:g} of what orca gets through on the fewest GPUs. The text names neither "
            "the model nor the counts.",
        )
        text = self.unfinished(self.points().values(), SCALED)
        return StudyPart(title="Fig. 12: more GPUs", text=text, tables=[table])

    def claims(self) -> Iterable[Claim]:
        """Statements of section 6.4: mean and tail fall with more GPUs."""
        for model in dict.fromkeys(machine.model for machine in self.points()):
            points = [point for machine, point in self.points().items() if machine.model == model]
            for what, number in zip(("mean", "p99"), LATENCIES, strict=True):
                found = [self.mean(point, FASTSERVE, number) for point in points]
                yield Claim(
                    where="Fig. 12",
                    says=f"{what} JCT falls with more GPUs ({points[0].machine.model})",
                    paper="falling",
                    ours=" ".join(f"{times(value)} s" for value in found),
                    verdict=judged(as_trend(found, rising=False)),
                )

    def per_token_part(self) -> StudyPart | None:
        """Seconds per token against the rate, the notebook's beside ours; None where they are not run."""
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
            text=self.unfinished(points.values(), PER_TOKEN),
            tables=[table],
            charts=[drawn],
        )

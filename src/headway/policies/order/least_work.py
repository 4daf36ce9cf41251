"""Least work first, aged; by predicted lengths while they hold, else by recent lengths."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from headway.core.cost import CostModel
from headway.core.job import Job, is_decode
from headway.core.plan import StepOutcome
from headway.core.prediction_quality import PredictionQuality, TrustRule
from headway.policies.order.predicted_remaining import DEFAULT_TAIL, PredictedRemaining
from headway.policies.order.remaining_work import LEAST_STRIDE_TOKENS, GittinsWork
from headway.policies.order.sorted_index import Key
from headway.policies.order.tenants import TenantQueues, TenantShares

_RULE = TrustRule()


class LeastWork(PredictedRemaining):
    """`predicted-remaining` by expected work per finished answer (`GittinsWork`), with held memory counted as work.

    While predictions are bad or absent, every job may have any of the recent lengths. A job that turns out not to be
    short sinks as in a feedback queue, and rises again near the usual lengths; long prompts, which are known, wait for
    short ones. When trust changes, every live job is estimated anew, 64 a step. With jobs of several tenants, the
    tenant with the least service comes first (`TenantShares`), and its jobs by least work. No job is overtaken for
    ever, as in `predicted-remaining`. Costs: as there; with several tenants O(k log k) for the top k.

    Among agent programs the one that has run longer comes first, by up to GONE_S, if its start is known. KV memory then
    serves few of them at a time. A job is passed only by jobs that arrive that much later than they otherwise could.
    """

    uses_prefixes = True
    _estimator = GittinsWork

    def __init__(
        self,
        cost: CostModel | None = None,
        *,
        tail: float = DEFAULT_TAIL,
        memory: bool = True,
        least_tau: float = _RULE.least_tau,
        trusted_at_first: bool = _RULE.trusted_at_first,
    ) -> None:
        super().__init__(cost, tail=tail, memory=memory)
        self.quality = PredictionQuality(TrustRule(least_tau=least_tau, trusted_at_first=trusted_at_first))
        self.work.believes_predictions = self.quality.trusted
        self.shares = TenantShares()
        self._index = self._queues = TenantQueues(self.shares, key=self._last_key, work_s=self.work.of)
        self._counted_tokens: dict[Job, int] = {}

    @property
    def trusts_predictions(self) -> bool:  # type: ignore[override]
        """Whether predictions rank now."""
        return self.quality.trusted

    def add(self, job: Job) -> None:
        """Index a job that starts to wait."""
        if job not in self:
            self._come(job)
        super().add(job)

    def _come(self, job: Job) -> None:
        if not (self.shares.several or self.shares.present(job.tenant)):
            # The second tenant arrived: the first one's earlier, uncounted service is not held against it.
            grown = [one for one, counted in self._counted_tokens.items() if one.num_output_tokens > counted]
            for live in grown:
                self._count(live)
        self.shares.come(job.tenant)
        self._counted_tokens[job] = job.num_output_tokens

    def touch(self, job: Job) -> None:
        """Compute a job's key again, and count its progress."""
        super().touch(job)
        self._count(job)

    def end(self, job: Job) -> None:
        """Forget a job."""
        self._count(job)
        super().end(job)
        del self._counted_tokens[job]
        self.shares.go(job.tenant)

    def observe(self, outcome: StepOutcome) -> None:
        """Follow a step as `predicted-remaining` does; with several tenants, count each one's service."""
        super().observe(outcome)
        if not self.shares.several:
            return
        for job, tokens in outcome.tokens.items():
            if tokens > 1 and job in self and not is_decode(job, tokens):
                self._serve(job.tenant, self.work.prefill_s(tokens))
            elif job.num_output_tokens >= self._counted_tokens.get(job, inf) + LEAST_STRIDE_TOKENS:
                self._count(job)

    def _count(self, job: Job) -> None:
        new = job.num_output_tokens - self._counted_tokens[job]
        if new > 0:
            self._serve(job.tenant, new * self.work.token_s)
            self._counted_tokens[job] = job.num_output_tokens

    def _last_key(self, job: Job) -> Key:
        return self._keys[job]

    def _serve(self, tenant: str, seconds: float) -> None:
        if self.shares.serve(tenant, seconds):
            self._queues.place(tenant)

    def ranked(self, jobs: Sequence[Job]) -> Sequence[Job]:
        """Sort `jobs` by the same rule, by their keys as last computed."""
        ranked = super().ranked(jobs)
        if not self.shares.several:
            return ranked
        queues: dict[str, list[Job]] = {}
        for job in ranked:
            queues.setdefault(job.tenant, []).append(job)
        keys, quantum = self._keys, self.shares.quantum
        by_turn = sorted(queues.values(), key=lambda queue: (quantum(queue[0].tenant), keys[queue[0]]))
        return list(self.shares.in_turn(by_turn, keys.__getitem__, self.work.of))

    def finished(self, job: Job) -> None:
        """Compare a finished answer with its prediction; perhaps change trust."""
        super().finished(job)
        if job.predicted_length is None:
            return
        self.quality.observe(job.predicted_length, job.num_output_tokens)
        if self.quality.trusted is not self.work.believes_predictions:
            self.work.believes_predictions = self.quality.trusted
            self.work.doubt_all()

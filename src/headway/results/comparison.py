"""Compares several policies: whether they are comparable, and in words which of two did better."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headway.core.record import Outcome, Record
from headway.errors import RecordError
from headway.results.metrics import Summary, summarize


@dataclass(frozen=True, slots=True)
class Comparison:
    """Policy -> summary, in the order given, and the summaries over the common subset of requests if they differ.

    `common` is empty if every policy finished the same requests, or if no request finished under all. `note` explains
    that in a sentence; it is "" if the policies are comparable.
    """

    summaries: dict[str, Summary]
    common: dict[str, Summary]
    note: str

    @property
    def comparable(self) -> bool:
        """Whether every policy finished the same requests, so that latencies compare the same work."""
        return not self.note


def compare(summaries: Mapping[str, Summary], records: Mapping[str, Sequence[Record]]) -> Comparison:
    """Compare policies; latencies of policies that finished different requests are not comparable.

    In that case `common` has the summaries over the requests finished under all policies. Only its latencies are
    meaningful: how many requests were lost is not in it. Raises RecordError unless both arguments name the same
    policies.
    """
    if set(summaries) != set(records):
        raise RecordError(f"summaries of {sorted(summaries)} cannot go with records of {sorted(records)}")
    finished = {
        policy: {record.id for record in records[policy] if record.outcome is Outcome.FINISHED}
        for policy in summaries
    }
    shared = set.intersection(*finished.values()) if finished else set()
    if all(ids == shared for ids in finished.values()):
        return Comparison(dict(summaries), {}, "")
    common = {
        policy: summarize([record for record in records[policy] if record.id in shared])
        for policy in summaries
    }
    return Comparison(dict(summaries), common if shared else {}, _note(finished, len(shared)))


def _note(finished: Mapping[str, set[str]], num_shared: int) -> str:
    counts = ", ".join(f"{policy} {len(ids):,}" for policy, ids in finished.items())
    if num_shared == 0:
        beside = "no request finished under all policies"
    else:
        beside = f"the {num_shared:,} finished under all policies are shown as well"
    return f"Latencies are not comparable: the policies finished different requests ({counts}); {beside}."


GOODPUT_ALIKE = 0.02
"""Goodputs closer than this count as equal: one run cannot tell them apart."""
JCT_ALIKE = 0.05
"""Mean JCTs closer than this, relative to the longer one, count as equal for the same reason."""


def verdict(comparison: Comparison, circumstances: str = "") -> str:
    """A sentence about goodput and one about JCT, after `circumstances`; each names the better of two policies.

    "" unless there are two. Compares nothing if different numbers of requests ended, and no JCTs if different requests
    finished.
    """
    summaries = comparison.summaries
    if len(summaries) != 2:
        return ""
    ended = [summary.requests for summary in summaries.values()]
    if len(set(ended)) > 1:
        counts = _both(f"{count:,}" for count in ended)
        said = [f"{_both(summaries)} cannot be compared: {counts} requests ended."]
    else:
        said = [_on_goodput(summaries), _on_jct(comparison)]
    return " ".join(filter(None, (circumstances, *said)))


def _on_goodput(summaries: Mapping[str, Summary]) -> str:
    shares = {name: one.goodput for name, one in summaries.items() if one.goodput is not None}
    if len(shares) < 2:
        return ""
    worse, better = sorted(shares, key=shares.__getitem__)
    if shares[better] - shares[worse] < GOODPUT_ALIKE:
        counts = _both(map(_of_100, shares.values()))
        return f"{_both(shares)} met about as many targets: {counts} of 100 requests were on time."
    return (
        f"{better} met more targets than {worse}: {_of_100(shares[better])} of 100 requests were on time "
        f"instead of {_of_100(shares[worse])}."
    )


def _on_jct(comparison: Comparison) -> str:
    summaries = comparison.summaries
    if not comparison.comparable:
        counts = _both(f"{one.finished:,} under {name}" for name, one in summaries.items())
        return f"Their answer times are not comparable: different requests finished ({counts})."
    means_s = {name: one.mean_jct_s for name, one in summaries.items() if one.mean_jct_s is not None}
    if len(means_s) < 2:
        return "No request finished."
    p99s_s = {name: one.p99_jct_s for name, one in summaries.items()}
    faster, slower = sorted(means_s, key=means_s.__getitem__)
    if means_s[slower] - means_s[faster] < JCT_ALIKE * means_s[slower]:
        lead, most = f"{_both(summaries)} answered about as soon", "and 99 of 100 came within"
        mean, p99 = (_both(map(_seconds, times_s.values())) for times_s in (means_s, p99s_s))
    else:
        lead = f"{faster} answered sooner than {slower}"
        tail_is_longer = (p99s_s[faster] or 0) > (p99s_s[slower] or 0)
        most = "but 99 of 100 came only within" if tail_is_longer else "and 99 of 100 came within"
        mean, p99 = (
            f"{_seconds(times_s[faster])} instead of {_seconds(times_s[slower])}"
            for times_s in (means_s, p99s_s)
        )
    return f"{lead}: the mean answer took {mean}, {most} {p99}."


def _both(words: Iterable[str]) -> str:
    return " and ".join(words)


def _of_100(share: float) -> str:
    """The share as a whole number of 100; "all" and "none" only if exact."""
    return f"{share * 100:.0f}" if share in (0, 1) else f"{min(99, max(1, round(share * 100)))}"


def _seconds(value_s: float | None) -> str:
    """Seconds with three digits."""
    return "–" if value_s is None else f"{float(f'{value_s:.3g}'):g} s"

"""Several policies side by side, and whether they may be compared at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headway.core.record import Outcome, Record
from headway.errors import RecordError
from headway.results.metrics import summarize
from headway.results.summary import Summary


@dataclass(frozen=True, slots=True)
class Comparison:
    """Policy -> summary, in the order given, with the same over the common subset where they differ.

    `common` is empty where every policy finished the same requests, or where no request finished under all.
    `note` says so in a sentence; it is "" where the policies are comparable.
    """

    summaries: dict[str, Summary]
    common: dict[str, Summary]
    note: str

    @property
    def comparable(self) -> bool:
        """Whether every policy finished the same requests, so that latencies speak of the same work."""
        return not self.note


def compare(summaries: Mapping[str, Summary], records: Mapping[str, Sequence[Record]]) -> Comparison:
    """Set policies side by side; latencies of policies that finished different requests are not comparable.

    In that case `common` holds the summaries over the requests finished under all policies. Only its
    latencies speak of the policies: how many requests were lost is not in it. Raises RecordError unless both
    arguments name the same policies.
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

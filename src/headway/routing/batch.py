"""A batch of requests that one instance serves together, padded to its longest, and what it wastes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headway.core.job import Job


def tokens_read(prompt_tokens: int, output_tokens: int) -> int:
    """KV tokens that one seat reads while it decodes `output_tokens` after a prompt: the sum of its contexts.

    The sum of `prompt_tokens + g` over g in [0, output_tokens).
    """
    return output_tokens * prompt_tokens + output_tokens * (output_tokens - 1) // 2


def batch_wma(prompt_tokens: int, output_tokens: int, least_read_alone: int, *, inclusive: bool) -> int:
    """WMA of a batch padded to these lengths, in which the cheapest member alone would read `least_read_alone`.

    A member of l and g tokens wastes g (L - l) on padding and the sum of `t + L` over t in [g, G) on waiting (Magnus
    equations of WMA_gen and WMA_wait). Together that is what its seat reads less what it would read alone, so the
    largest waste in a batch is that of the member that reads least alone: O(1), not O(members). `inclusive` sums to G
    itself, as the paper prints it, which charges every member G + L more. Source: Magnus (Cheng et al. 2024,
    arXiv:2406.04785), a maximum over the members, not a sum.
    """
    waste = tokens_read(prompt_tokens, output_tokens) - least_read_alone
    return waste + prompt_tokens + output_tokens if inclusive else waste


@dataclass(frozen=True, slots=True)
class BatchMember:
    """A job, its planned output tokens for waste and for memory, and its number of seats.

    A job with several answers has a seat for each.
    """

    job: Job
    output_tokens: int
    memory_tokens: int
    seats: int = 1

    @property
    def read_alone(self) -> int:
        """KV tokens that it would read if it were served alone."""
        return tokens_read(self.job.num_prompt_tokens, self.output_tokens)


@dataclass(slots=True, eq=False)
class Batch:
    """Members in the order in which they joined, with sums to judge one more in O(1).

    A `sealed` batch takes no newcomers: it is a part of a batch that could not be served. Batches are numbered in the
    order in which they were opened, which breaks ties.
    """

    number: int
    members: list[BatchMember]
    sealed: bool = False
    prompt_tokens: int = field(init=False, default=0)
    output_tokens: int = field(init=False, default=0)
    memory_tokens: int = field(init=False, default=0)
    seats: int = field(init=False, default=0)
    oldest_arrival_s: float = field(init=False)
    _arrivals_s: float = field(init=False, default=0.0)
    _least_read_alone: int = field(init=False)

    def __post_init__(self) -> None:
        assert self.members, "a batch has at least one member"
        self.oldest_arrival_s = self.members[0].job.arrival_s
        self._least_read_alone = self.members[0].read_alone
        for member in self.members:
            self._count(member)

    def __len__(self) -> int:
        return len(self.members)

    @property
    def jobs(self) -> list[Job]:
        """The jobs of the members."""
        return [member.job for member in self.members]

    @property
    def mean_arrival_s(self) -> float:
        """Mean arrival of its members."""
        return self._arrivals_s / len(self.members)

    def add(self, member: BatchMember) -> None:
        """Add a member; not to a sealed batch."""
        assert not self.sealed, "a sealed batch does not grow"
        self.members.append(member)
        self._count(member)

    def _count(self, member: BatchMember) -> None:
        self.prompt_tokens, self.output_tokens = self.padded_with(member)
        self.memory_tokens = max(self.memory_tokens, member.memory_tokens)
        self.seats += member.seats
        self.oldest_arrival_s = min(self.oldest_arrival_s, member.job.arrival_s)
        self._arrivals_s += member.job.arrival_s
        self._least_read_alone = min(self._least_read_alone, member.read_alone)

    def padded_with(self, member: BatchMember) -> tuple[int, int]:
        """Prompt and output tokens of every seat once the member has joined."""
        return (
            max(self.prompt_tokens, member.job.num_prompt_tokens),
            max(self.output_tokens, member.output_tokens),
        )

    def seat_tokens_with(self, member: BatchMember) -> int:
        """KV tokens that memory is planned for at every seat once the member has joined."""
        prompt_tokens, _ = self.padded_with(member)
        return prompt_tokens + max(self.memory_tokens, member.memory_tokens)

    def read_with(self, member: BatchMember) -> int:
        """KV tokens that every seat reads once the member has joined."""
        return tokens_read(*self.padded_with(member))

    def wma_with(self, member: BatchMember, *, inclusive: bool) -> int:
        """WMA of the batch once the member has joined. O(1)."""
        least = min(self._least_read_alone, member.read_alone)
        return batch_wma(*self.padded_with(member), least, inclusive=inclusive)


def halved(members: Sequence[BatchMember]) -> tuple[list[BatchMember], list[BatchMember]]:
    """The shorter and the longer half by planned output; the odd one is in the shorter. O(n log n)."""
    ordered = sorted(members, key=lambda member: (member.output_tokens, member.job.arrival_s, member.job.id))
    middle = (len(ordered) + 1) // 2
    return ordered[:middle], ordered[middle:]

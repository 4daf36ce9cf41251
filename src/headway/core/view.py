"""What a policy sees before a step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from headway.core.job import Job


def _never(job: Job) -> bool:
    return False


def _always(job: Job) -> bool:
    return True


def _none(job: Job) -> int:
    return 0


@dataclass(slots=True, kw_only=True)
class StepView:
    """The state of one engine before a step: one object, reused, whose lists a policy only reads.

    Requests:

    - `residents` hold KV, in the engine's order: the run order of the last step, then newcomers.
    - `waiting` is unordered, since orders keep their own index of it.

    Sizes of a step:

    - `max_run` is the batch width. `max_resident` is the number of worker slots; paused jobs use one.
    - `max_tokens` is the most that one step may compute.
    - `tokens_a_decode` is what a decode takes of it: one token and its drafts. `decoded_tokens` is the recent mean
      number of these that were right.
    - `graphed_tokens` is the most that CUDA graphs hold; one more may cost much. 0 without graphs.
    - `watermark_blocks` stay free where a job starts, or comes back and has its first step, beside others.
    - `defers_prompts`: the engine computes no prompts in this step, so that data-parallel engines keep pace.

    Questions, each a lookup, so ask for a few jobs and not for all:

    - `admissible(job)`: would a waiting or swapped job pass every check of this step but its rank?
    - `ready(job)` is the part of it that freed blocks would not change.
    - `missing_blocks(job)`: blocks that have to come free before a waiting job fits, less those in the prefix cache.

    With a host tier:

    - `swapped` jobs have their KV on the host or on its way there. They are unordered, in the order's index.
    - `restoring` are residents whose KV is on its way back; they get no tokens.
    - `returned` are these, and those that are back and have had no step since. They run after all others: no job is
      evicted for the block that their next token may open.
    - `blocks_coming_free` are held by copies to the host alone.
    - `uncopied_blocks(job)`: blocks of a resident that a swap would have to wait for; 0: the swap is instant.
    - `unsent_blocks(job)`: how many of these no copy under way brings either. They need room on the host.

    With a KV store beside the device, `restoring` and `returned` are as with a host tier, for KV that is loaded.
    `blocks_coming_free` are held by stores alone.

    With a KV connector of another package:

    - `fetching` are waiting jobs whose KV it looks up or loads. They cannot start yet, so policies leave them out of
      `admit`. Those that load hold blocks, and start before others once it is there.
    - `total_blocks` leaves out the blocks of such loads, and those of ended requests that the connector still reads.
    - `blocks_coming_free` are those of preempted requests whose last step is in flight.

    Elsewhere:

    - `waiting_elsewhere` are the prompt tokens that wait at each instance to which this one hands off; empty if not
      told.
    - `told_elsewhere_s` is when that was told; what was handed off since is added.
    """

    now_s: float = 0.0
    residents: Sequence[Job] = ()
    waiting: Collection[Job] = ()
    swapped: Collection[Job] = ()
    restoring: Collection[Job] = ()
    returned: Collection[Job] = ()
    fetching: Collection[Job] = ()
    free_blocks: int = 0
    total_blocks: int = 0
    blocks_coming_free: int = 0
    host_free_blocks: int = 0
    host_total_blocks: int = 0
    watermark_blocks: int = 0
    block_size: int = 16
    max_run: int = 1
    max_resident: int = 1
    max_tokens: int = 1
    tokens_a_decode: int = 1
    decoded_tokens: float = 1.0
    graphed_tokens: int = 0
    defers_prompts: bool = False
    waiting_elsewhere: Sequence[int] = ()
    told_elsewhere_s: float = 0.0
    admissible: Callable[[Job], bool] = _never
    ready: Callable[[Job], bool] = _always
    missing_blocks: Callable[[Job], int] = _none
    uncopied_blocks: Callable[[Job], int] = _none
    unsent_blocks: Callable[[Job], int] = _none

    def blocks(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    @property
    def spare_blocks(self) -> int:
        """Blocks that a job must leave free when it starts, or has its first step after its return: 0 if it is
        alone.
        """
        return self.watermark_blocks if len(self.residents) > len(self.returned) else 0

    @property
    def seats(self) -> int:
        """How many more jobs may become resident within batch width and worker slots."""
        return self.seats_beside(self.residents)

    def seats_beside(self, run: Sequence[Job]) -> int:
        """How many jobs may start in a step that runs these residents while the others pause."""
        return max(0, min(self.max_run - len(run), self.max_resident - len(self.residents)))

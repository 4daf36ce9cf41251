"""The accepted trace formats: how to recognise each, and how to read a row."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from hashlib import blake2b

from headway.core.job import PREFIX_BLOCK_TOKENS
from headway.core.slo import NO_TARGETS, Slo
from headway.errors import TraceError
from headway.traces.cells import (
    Cells,
    dates,
    identities,
    optional_number,
    optional_whole,
    shown,
    ticks,
    whole,
)

MOONCAKE_BLOCK_TOKENS = PREFIX_BLOCK_TOKENS
"""Tokens of one block in Mooncake's `hash_ids`. Source: Qin et al. 2025, FAST 2025 trace release."""


@dataclass(frozen=True, slots=True, kw_only=True)
class More:
    """What a row says about its request besides arrival and lengths.

    `text` is the prompt as text, JSON or token ids: not to be sent, but to find common prefixes.
    """

    id: str | None = None
    max_output_tokens: int | None = None
    tenant: str = ""
    prompt: str | None = None
    session: str | None = None
    prefix_blocks: tuple[int, ...] = ()
    priority: int = 0
    slo: Slo = NO_TARGETS
    think_s: float | None = None
    text: str = ""


class WholeFileError(TraceError):
    """A fault of one row which shows that the file is not what it was taken for."""


@dataclass(frozen=True, slots=True)
class Format:
    """A trace format: the required columns (time, input tokens, output tokens), and how to read a row.

    `read_time` returns a row's arrival in ticks of `time_unit`, as integers if the file's are, so that shifting them
    loses no digit. `more` reads the columns in `optional` if they exist; other columns are ignored. `told_unit` is the
    unit that the file itself states; empty if it is only assumed, and without a `time_unit` nothing is assumed. A file
    has the keys in `needs`, if they differ from `columns`. `note` says what is interpreted differently. With `in_order`
    a file's rows come in order of arrival, not of end.
    """

    name: str
    columns: tuple[str, str, str]
    time_unit: str = "ns"
    told_unit: str = ""
    read_time: Callable[[Cells, str], float] = ticks
    more: Callable[[Cells], More] = lambda cells: More()
    optional: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    note: str = ""
    in_order: bool = False

    def __str__(self) -> str:
        return f"{self.name} ({','.join(self.needs or self.columns)})"

    def fits(self, names: Collection[str]) -> bool:
        """Whether a file with these columns has this format."""
        return set(self.needs or self.columns) <= set(names)

    def parse(self, cells: Cells) -> tuple[float, int, int, More]:
        """Arrival in ticks, input and output tokens, and what else a row says. Raises TraceError if it is no
        request.
        """
        time, of_input, of_output = self.columns
        more = self.more(cells)  # read first, since it may show that a request failed
        input_tokens, output_tokens = whole(cells, of_input), whole(cells, of_output)
        for column, tokens in ((of_input, input_tokens), (of_output, output_tokens)):
            if tokens < 1:
                raise TraceError.of(column, tokens, "1 or more")
        return self.read_time(cells, time), input_tokens, output_tokens, more


def _headway(cells: Cells) -> More:
    return More(
        id=cells.get("id"),
        max_output_tokens=optional_whole(cells, "max_output_tokens"),
        tenant=cells.get("tenant", ""),
        prompt=cells.get("prompt") or None,
        session=cells.get("session") or None,
        prefix_blocks=identities(cells, "prefix_blocks"),
        priority=optional_whole(cells, "priority") or 0,
        slo=_targets(cells),
        think_s=optional_number(cells, "think_s"),
    )


def _targets(cells: Cells) -> Slo:
    # Beside `api_s`, the measured server time, `ttft_s` is a measurement too: such a file is a log, and its times are
    # no wishes of the client.
    ttft_s = None if "api_s" in cells else optional_number(cells, "ttft_s")
    return Slo(ttft_s, optional_number(cells, "tbt_s"), optional_number(cells, "deadline_s"))


def _record(cells: Cells) -> More:
    if cells["outcome"] != "finished":
        raise TraceError.of(
            "outcome", cells["outcome"], "finished, as others do not tell how long the answer was"
        )
    targets = (optional_number(cells, f"slo.{name}") for name in ("ttft_s", "tbt_s", "deadline_s"))
    return More(id=cells.get("id"), tenant=cells.get("tenant", ""), slo=Slo(*targets))


def _mooncake(cells: Cells) -> More:
    input_tokens, hashes = whole(cells, "input_length"), identities(cells, "hash_ids")
    blocks = -(-input_tokens // MOONCAKE_BLOCK_TOKENS)
    if len(hashes) > max(blocks, 0):
        raise WholeFileError(
            f"hash_ids names {len(hashes)} blocks, but {input_tokens} tokens fill {blocks}; "
            f"accepted: blocks of {MOONCAKE_BLOCK_TOKENS} tokens, as Mooncake publishes"
        )
    return More(prefix_blocks=hashes, session=cells.get("session_id") or None)


BAILIAN_BLOCK_TOKENS = 16
"""Tokens of one block in `hash_ids` of Qwen-Bailian's traces."""


def _bailian(cells: Cells) -> More:
    """Blocks of 512 tokens, each named after its 32 small ones."""
    small, size = identities(cells, "hash_ids"), MOONCAKE_BLOCK_TOKENS // BAILIAN_BLOCK_TOKENS
    groups = (small[start : start + size] for start in range(0, len(small), size))
    names = (blake2b(repr(group).encode(), digest_size=8).digest() for group in groups)
    return More(prefix_blocks=tuple(map(int.from_bytes, names)))


def _no_error(column: str, accepted: str = "") -> Callable[[Cells], More]:
    """A format whose rows say in a column whether they failed."""

    def more(cells: Cells) -> More:
        if (found := cells.get(column, "")) != accepted:
            raise TraceError.of(column, shown(found), accepted or "none")
        return More()

    return more


HEADWAY = Format(
    "Headway",
    ("arrival_s", "input_tokens", "output_tokens"),
    "s",
    told_unit="s",
    more=_headway,
    optional=(
        *("id", "max_output_tokens", "tenant", "prompt", "session", "think_s", "prefix_blocks", "priority"),
        *("ttft_s", "tbt_s", "deadline_s"),
    ),
    in_order=True,
)
AZURE = Format(
    "Azure LLM", ("TIMESTAMP", "ContextTokens", "GeneratedTokens"), told_unit="dates", read_time=dates
)
BURSTGPT = Format(
    "BurstGPT",
    ("Timestamp", "Request tokens", "Response tokens"),
    "s",
    more=lambda cells: More(session=cells.get("Session ID") or None),
    optional=("Session ID",),
    in_order=True,
)
_MOONCAKE_KEYS = ("timestamp", "input_length", "output_length")
MOONCAKE = Format(
    "Mooncake", _MOONCAKE_KEYS, "ms", more=_mooncake, optional=("hash_ids", "session_id"), in_order=True
)
AIPERF = Format(
    "aiperf",
    _MOONCAKE_KEYS,
    "ms",
    more=_mooncake,
    optional=("hash_ids", "session_id", "delay"),
    needs=("session_id", "input_length"),
    note="a delay counts from the arrival of the turn before, a session without timestamp from 0",
)
"""As Mooncake, but later turns of a session have a `delay` in place of a `timestamp` (`rows.with_delays`)."""
_EXPORTS = (
    Format(
        "Headway records",
        ("arrival_s", "prompt_tokens", "output_tokens"),
        "s",
        told_unit="s",
        more=_record,
        optional=("id", "tenant", "outcome", "slo.ttft_s", "slo.tbt_s", "slo.deadline_s"),
        needs=("arrival_s", "prompt_tokens", "output_tokens", "outcome"),
    ),
    Format(
        "Qwen-Bailian",
        _MOONCAKE_KEYS,
        "s",
        told_unit="s",
        more=_bailian,
        optional=("hash_ids",),
        needs=(*_MOONCAKE_KEYS, "chat_id", "parent_chat_id"),
    ),
    Format(
        "vLLM bench serve",
        ("start_times", "input_lens", "output_lens"),
        "s",
        told_unit="s",
        more=_no_error("errors"),
        optional=("errors",),
    ),
    *(
        Format(
            "guidellm report",
            (start, "prompt_tokens", "output_tokens"),
            told_unit="dates",
            read_time=dates,
            more=_no_error("status", "successful"),
            optional=("status",),
            needs=(start, "prompt_tokens", "output_tokens", "request_id", "status"),
        )
        for start in ("request_start_time", "start_time")
    ),
    Format(
        "aiperf profile export",
        (
            "metadata.request_start_ns",
            "metrics.input_sequence_length.value",
            "metrics.output_sequence_length.value",
        ),
        told_unit="dates",
        read_time=dates,
        more=lambda cells: More(session=cells.get("metadata.conversation_id") or None),
        optional=("metadata.conversation_id",),
    ),
)
OPEN_TELEMETRY = Format(
    "OpenTelemetry",
    ("startTimeUnixNano", "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"),
    told_unit="dates",
    read_time=dates,
    more=lambda cells: More(
        session=cells.get("gen_ai.conversation.id") or None,
        max_output_tokens=optional_whole(cells, "gen_ai.request.max_tokens"),
        text=cells.get("gen_ai.input.messages", ""),
    ),
    optional=(
        *("gen_ai.conversation.id", "gen_ai.request.max_tokens", "gen_ai.input.messages"),
        *("spanId", "parentSpanId"),
    ),
)
VLLM_LOG = Format(
    "vLLM log",
    ("asctime", "prompt_token_ids", "output_token_ids"),
    told_unit="dates",
    read_time=dates,
    more=lambda cells: More(text=cells["text"]),
    optional=("text",),
)

TABLES = (HEADWAY, AZURE, BURSTGPT, MOONCAKE)
FORMATS = (HEADWAY, AZURE, BURSTGPT, *_EXPORTS, OPEN_TELEMETRY, AIPERF, MOONCAKE)
"""The formats in the order in which they are tried."""
ACCEPTED = f"{', '.join(map(str, TABLES))}, "
ACCEPTED += "and what guidellm, aiperf, vLLM, OpenTelemetry and access logs write"

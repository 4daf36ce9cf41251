"""Whether clients and gateway tell of the same ends, and whether every answer is the right one."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from bench.storm_clients import Ending, Heard

AGREE = {
    Ending.FINISHED: ("finished",),
    Ending.REFUSED: ("shed", "expired", "failed", "rejected"),
    Ending.INTERRUPTED: ("failed",),
    # Who left may have missed how it ended.
    Ending.LEFT: ("cancelled", "finished", "shed", "expired", "failed"),
}
"""What a client saw -> what the gateway may have logged."""


def unaccounted(heard: Sequence[Heard], lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Requests without exactly one line in the access log, or with one that is not what the client saw.

    A client that left before its request was whole may have no line. A line of a request nobody sent counts too.
    """
    ends: dict[str, list[str]] = {}
    for line in lines:
        ends.setdefault(line["id"], []).append(line["outcome"])
    bad = []
    for one in heard:
        found = ends.pop(one.asked.id, [])
        never_came = not found and one.ending is Ending.LEFT
        agrees = len(found) == 1 and found[0] in AGREE.get(one.ending, ())
        if not (agrees or never_came):
            print(f"{one.asked.id}: {one.ending} ({one.status} {one.said}), logged {found}", file=sys.stderr)
            bad.append(one.asked.id)
    return [*bad, *ends]


def wrong(heard: Sequence[Heard], answers: Mapping[tuple[str, bool], str]) -> list[str]:
    """Requests whose answer is wrong, each told on stderr beside the right one."""
    bad = [one for one in heard if is_wrong(one, answers)]
    for one in bad:
        right = answers[one.asked.prompt, one.asked.chat]
        print(f"{one.asked.id}: {one.ending} {one.text!r}, undisturbed {right!r}", file=sys.stderr)
    return [one.asked.id for one in bad]


def is_wrong(heard: Heard, answers: Mapping[tuple[str, bool], str]) -> bool:
    """Whether an answer, as far as it came, is not the undisturbed one of its prompt (and whether it is a chat)."""
    right = answers[heard.asked.prompt, heard.asked.chat]
    return heard.text != right if heard.ending is Ending.FINISHED else not right.startswith(heard.text)

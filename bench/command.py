"""What benches tell people while they run; stdout is for data."""

from __future__ import annotations

import sys
from argparse import ArgumentParser

from headway.policies.eviction.proactive import Proactive
from headway.policies.presets import Preset, build_policy, known_presets


def say(line: str) -> None:
    """A line on stderr, at once."""
    print(line, file=sys.stderr, flush=True)


# ---- How benches choose presets, and what presets do with requests and their KV, told from their parts


def preset_option(parser: ArgumentParser, flag: str, explained: str) -> None:
    """Add an option that names presets, one each time it is given."""
    parser.add_argument(
        flag, action="append", choices=list(known_presets()), metavar="PRESET", help=explained
    )


def pauses(preset: Preset) -> bool:
    """Whether it lets more requests be resident than run, so that a batch narrower than the slots matters."""
    return preset.batching.partition(":")[0] == "top-jobs"


def moves_ahead(preset: Preset) -> bool:
    """Whether it copies KV to the host and back before it has to."""
    eviction = build_policy(preset).eviction
    return isinstance(eviction, Proactive) and eviction.ahead and not eviction.drop

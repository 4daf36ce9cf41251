"""A command as it is written down beside its results."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence

_SECRETS = ("--api-key", "--hf-token")
"""Flags of vLLM whose values nobody else is to read."""
_HIDDEN = "***"


def written_command(arguments: Sequence[str], *, without: Collection[str] = ()) -> str:
    """The command line that these arguments (of `sys.argv`) were, to be copied into a shell.

    Flags of `without` are left out with their value; of flags that hold secrets only the name is kept.
    """
    kept, flag, is_left_out = ["headway"], "", False
    for word in arguments[1:]:
        if word.startswith("--"):
            flag, has_value, _ = word.partition("=")
            flag = flag.replace("_", "-")  # vLLM reads both
            is_left_out = flag in without and not has_value
            if flag not in without:
                kept.append(f"{flag}={_HIDDEN}" if has_value and flag in _SECRETS else word)
        elif is_left_out:
            is_left_out = False
        else:
            kept.append(_HIDDEN if flag in _SECRETS else word)
    return shlex.join(kept)

"""What the command line calls a setting that an error names."""

from __future__ import annotations

from collections.abc import Iterable

_FLAGS = {
    "ttft_s": "--slo-ttft",
    "tbt_s": "--slo-tbt",
    "deadline_s": "--slo-deadline",
    "drain_s": "--drain-seconds",
    "threshold": "--hand-off-threshold",
}
"""Settings whose flags are not called as they are."""


def by_flag(message: str, words: Iterable[str]) -> str:
    """The message with the flag in place of the setting that it begins with, if the flag is among these words.

    `host_kv.gib is -1; ...` is about `--host-kv-gib`, `timeout_s is ...` about `--timeout`. What no flag set came from
    a file, and keeps its name.
    """
    setting, verb, rest = message.partition(" is ")
    dashed = "--" + setting.replace("_", "-").replace(".", "-")
    given = {word.partition("=")[0] for word in words}
    for flag in (_FLAGS.get(setting), dashed, dashed.removesuffix("-s")):
        if flag in given:
            return f"{flag}{verb}{rest}"
    return message

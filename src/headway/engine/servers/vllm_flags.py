"""vLLM's own flags, given after `--` or in a file: read, checked and completed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from headway.errors import ConfigError

_BEFORE = "give it before the `--`"

REFUSED = {
    "--model": "the model is the first argument of `headway serve`",
    "--host": _BEFORE,
    "--port": _BEFORE,
    "--uds": "Headway serves on --host and --port",
    "--grpc": "Headway serves the OpenAI API over HTTP",
    "--headless": "Headway runs the API server and its engine together",
    "--scheduler-cls": "Headway is the scheduler; choose what it does with --policy, --order, --batching, "
    "--eviction and --leaving",
    "--no-enable-chunked-prefill": "leave chunked prefill on; `--policy vllm --batching prefill-first` "
    "computes prompts whole",
}
"""Flags of vLLM that Headway sets or cannot work with -> what to do instead."""

_NUMBER = re.compile(r"-\d")


@dataclass(frozen=True, slots=True)
class VllmFlag:
    """One flag with its values; `name` is in vLLM's spelling (dashes), `words` as the user wrote it.

    Flags in a `--config` file have no words: vLLM reads the file itself, and the command line has precedence.
    """

    name: str
    values: tuple[str, ...]
    words: tuple[str, ...]


def parse_vllm_flags(words: Sequence[str]) -> list[VllmFlag]:
    """The flags in a list of words, after those in its `--config` file.

    Raises ConfigError for words that are no flag, for refused flags, and for an unreadable file.
    """
    flags: list[VllmFlag] = []
    for word in words:
        if word.startswith("-") and not _NUMBER.match(word):
            name, given, value = word.partition("=")
            flags.append(VllmFlag(_spelled(name), (value,) if given else (), (word,)))
        elif flags:
            last = flags.pop()
            flags.append(VllmFlag(last.name, (*last.values, word), (*last.words, word)))
        else:
            raise ConfigError(f"unexpected argument {word!r}; vLLM's own flags come after `--`")
    file = value_of(flags, "--config")
    if file is not None:
        flags = [*(VllmFlag(_spelled(name), values, ()) for name, values in read_config_file(file)), *flags]
    for flag in flags:
        _check(flag)
    return flags


def value_of(flags: Sequence[VllmFlag], name: str) -> str | None:
    """A flag's last value; None if the flag is not given."""
    values = [flag.values[-1] for flag in flags if flag.name == name and flag.values]
    return values[-1] if values else None


def is_given(flags: Sequence[VllmFlag], *names: str) -> bool:
    """Whether any of the flags is given, directly or in its `--no-` form."""
    wanted = {*names, *(name.replace("--", "--no-", 1) for name in names)}
    return any(flag.name.partition(".")[0] in wanted for flag in flags)


def take_additional_config(flags: Sequence[VllmFlag]) -> tuple[dict[str, Any], list[VllmFlag]]:
    """Split off the user's `--additional-config`, inline or in a file; return it and the other flags."""
    name = "--additional-config"
    text = value_of(flags, name)
    rest = [flag for flag in flags if flag.name != name]
    if any(flag.name.startswith(f"{name}.") for flag in flags):
        raise ConfigError(f"{name}.KEY is not supported; accepted: {name} with one JSON object")
    try:
        config = {} if text is None else json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{name} {text!r} is not JSON ({error}); accepted: one JSON object") from None
    if not isinstance(config, dict) or not isinstance(config.get("headway", {}), dict):
        raise ConfigError.of(name, text, "one JSON object, with 'headway' an object if given")
    return config, rest


def _spelled(name: str) -> str:
    """The name in vLLM's spelling: underscores become dashes, except after the dot of a nested key."""
    head, dot, nested = name.partition(".")
    return head.replace("_", "-") + dot + nested


def _check(flag: VllmFlag) -> None:
    """Raise ConfigError for a refused flag. vLLM also accepts unambiguous abbreviations."""
    written = flag.words[0] if flag.words else f"{flag.name} in the file of --config"
    name = flag.name.partition(".")[0]
    for refused, instead in REFUSED.items():
        if refused == name or (len(name) > len("--x") and refused.startswith(name)):
            raise ConfigError(f"{written} cannot be used under Headway: {instead}")


def read_config_file(path: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each flag of a file with its values, as vLLM reads them. Raises ConfigError if the file has no flags."""
    try:
        told = msgspec.yaml.decode(Path(path).read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"--config {path} cannot be read ({error})") from None
    if not isinstance(told, dict):
        raise ConfigError(
            f"--config {path} holds no flags; accepted: YAML with a line `flag: value` for each"
        )
    for key, value in told.items():
        yield f"--no-{key}" if value is False else f"--{key}", _words(value)


def _words(value: Any) -> tuple[str, ...]:
    if isinstance(value, bool):
        return ()
    if isinstance(value, list):
        return tuple(map(str, value))
    return (json.dumps(value) if isinstance(value, dict) else str(value),)

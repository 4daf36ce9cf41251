"""Options come from dataclasses, and errors name what the user typed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer

from headway.cli import Command
from headway.cli.options import Given, OptionGroup, command_of
from headway.core.slo import Slo
from headway.engine.host_kv import HostKv
from headway.engine.settings import EngineSettings
from headway.errors import ConfigError
from headway.policies.leaving.at_risk import AtRisk
from headway.setting import COUNT, Setting, check_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    width: Annotated[int, Setting("How wide.", "N", COUNT)] = 4

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """Settings of every kind."""

    name: Annotated[str | None, Setting("A name.")] = None
    timeout_s: Annotated[float, Setting("Patience.", "S")] = 60.0
    slo_ttft_s: Annotated[float | None, Setting("Target.", "S")] = None
    slo_tbt_s: Annotated[float | None, Setting("Target.", "S")] = None
    hand_off_threshold: Annotated[float | None, Setting("A share.")] = None
    leaving: Annotated[tuple[str, ...] | None, Setting("Rules.")] = None
    inner: Annotated[Inner, OptionGroup(panel="Inside")]
    engine: Annotated[Given, OptionGroup(of=EngineSettings, prefix="engine_")]
    host_kv: Annotated[Given, OptionGroup(of=HostKv, prefix="host_kv_")]


def run(*words: str, then: str = "") -> Flags:
    """The flags that a command receives; `then` is what the command does with them."""
    found: list[Flags] = []

    def command(flags: Flags) -> None:
        """A command."""
        found.append(flags)
        if then == "host_kv":
            HostKv(**flags.host_kv)
        elif then == "slo":
            Slo(ttft_s=flags.slo_ttft_s)
        elif then == "threshold":
            AtRisk(threshold=float("nan"))
        elif then:
            raise ConfigError.of(then, "nan", "x")

    app = typer.Typer(add_completion=False)
    app.command(cls=Command)(command_of(command))
    typer.main.get_command(app).main([*words], standalone_mode=False)
    return found[0]


def test_a_dataclass_gets_what_was_given_and_its_defaults() -> None:
    flags = run("--name", "x", "--leaving", "a", "--leaving", "b", "--width", "2", "--engine-explain", "0")
    assert (flags.name, flags.timeout_s, flags.leaving, flags.inner) == (
        "x",
        60.0,
        ("a", "b"),
        Inner(width=2),
    )
    assert (flags.engine, flags.host_kv) == ({"explain": 0}, {})
    assert run().leaving is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--slo-ttft", "500"], "--slo-ttft is 500 s (seconds, not ms)\n"),
        (["--slo-ttft", "60"], ""),
        (["--slo-tbt", "50"], "--slo-tbt is 50 s (seconds, not ms)\n"),
        (["--slo-ttft", "2", "--slo-tbt", "2"], ""),
        (["--slo-ttft", "604801", "--slo-tbt", "nan"], ""),
        ([], ""),
    ],
)
def test_a_target_that_looks_like_milliseconds_is_told_in_a_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run(*words)
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    ("then", "words", "said"),
    [
        ("slo", ["--slo-ttft", "-1"], "--slo-ttft is -1.0; accepted: a number of seconds"),
        ("host_kv", ["--host-kv-gib=nan"], "--host-kv-gib is nan; accepted: more than 0"),
        ("timeout_s", ["--timeout", "nan"], "--timeout is nan; accepted: x"),
        ("threshold", ["--hand-off-threshold=nan"], "--hand-off-threshold is nan"),
        ("threshold", ["--leaving", "at-risk:threshold=nan"], "threshold is nan"),
        ("", ["--width", "0"], "--width is 0; accepted: 1 or more"),
        ("ttft_s", ["--name", "t.csv"], "ttft_s is nan"),
    ],
)
def test_a_setting_is_called_by_its_flag_if_that_was_given(then: str, words: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        run(*words, then=then)
    assert str(error.value).startswith(said)


def test_a_flag_that_an_error_does_not_begin_with_changes_nothing() -> None:
    with pytest.raises(ConfigError, match=r"^line 3: ttft_s is -1\.0$"):
        raise ConfigError(f"line 3: {ConfigError.of('ttft_s', -1.0)}")

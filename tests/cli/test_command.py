from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from headway.cli import COME_BY, COMMANDS, _load, missing
from headway.engine.machine import vllm_version
from tests.cli.conftest import Headway, Refused

HEAVY = (
    "numpy",
    "matplotlib",
    "aiohttp",
    "vllm",
    "torch",
    "transformers",
    "headway.results",
    "headway.traces",
)


FULL_DISK = Path("/dev/full")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headway.cli", *arguments], capture_output=True, text=True, check=False
    )


def test_help_lists_the_commands_and_teaches() -> None:
    done = run("--help")
    assert done.returncode == 0
    short = subprocess.run([sys.executable, "-m", "headway", "--help"], capture_output=True, text=True)
    assert (short.returncode, short.stdout) == (0, done.stdout)
    assert all(name in done.stdout for name in ("serve", "replay", "simulate"))
    assert "headway serve demo" in done.stdout


def examples(text: str) -> list[list[str]]:
    """The words of each command of a help text, read as a shell would read it if it was copied there."""
    shown = [line for line in text.replace("\\\n", " ").splitlines() if line.startswith("  headway ")]
    return [shlex.split(line, comments=True) for line in shown]


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_is_for_users_and_all_of_its_examples_can_be_copied(
    name: str, headway: Headway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = headway(*name.split(), "--help")
    assert code == 0
    assert "Raises" not in out  # that is for callers
    shown = examples(out)
    assert shown
    for _, command, *words in shown:
        _load(command).make_context(command, words)  # raises for words that it would not accept


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys, json\n"
        "sys.argv = ['headway', *sys.argv[1:]]\n"
        "from headway.cli import main\n"
        "try:\n"
        "    main()\n"
        "except SystemExit:\n"
        "    print(json.dumps(sorted(sys.modules)), file=sys.stderr)\n"
    )
    for arguments in (["--help"], ["serve", "--help"], ["replay", "--help"], ["simulate", "--help"]):
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True
        )
        loaded = set(json.loads(done.stderr))
        assert loaded.isdisjoint(HEAVY), arguments


def test_version_is_the_packages() -> None:
    assert run("--version").stdout.strip() == f"headway {version('headway')}, vLLM {vllm_version()}"


def test_the_version_says_that_there_is_no_vllm(headway: Headway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.engine.machine.vllm_version", lambda: "unknown")
    assert headway("--version").out == f"headway {version('headway')}, no vLLM\n"


def test_an_unknown_command_is_a_usage_error() -> None:
    done = run("rerun")
    assert done.returncode == 2
    assert "No such command" in done.stderr
    assert done.stdout == ""


def test_an_error_of_ours_is_one_line_and_code_2(refused: Refused) -> None:
    err = refused("serve", "demo", "--policy", "nope")
    assert err.startswith("error: unknown policy 'nope'; accepted: vllm, ")
    assert err.count("\n") == 1


def test_a_flag_of_vllm_is_said_to_go_after_the_dashes() -> None:
    done = run("serve", "demo", "--max-num-seqs", "16")
    assert done.returncode == 2
    assert "a flag of vLLM goes after `--`" in " ".join(done.stderr.split())
    assert "vLLM" not in run("simulate", "--max-num", "16").stderr


@pytest.mark.skipif(not FULL_DISK.exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("words", [("policies",), ("policies", "--json"), ("--help",)])
def test_a_full_disk_behind_stdout_is_one_line_and_code_2(words: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "headway.cli", *words]
    with FULL_DISK.open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        2,
        "error: output cannot be written (No space left on device); make room, or write elsewhere\n",
    )


def test_a_name_that_is_no_text_is_one_line_and_code_2(tmp_path: Path) -> None:
    trace = os.path.join(os.fsencode(tmp_path), b"latin-\xe9.csv")
    with open(trace, "w", encoding="ascii") as file:
        file.write("arrival_s,input_tokens,output_tokens\n0,8,2\n")
    flags = ("--hardware", "h100", "--model", "demo", "--policies", "vllm", "--trace")
    words: list[str | bytes] = [sys.executable, "-m", "headway.cli", "simulate", *flags, trace]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: ")
    assert "latin-\\udce9.csv' on the command line is not UTF-8" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_module_that_is_missing_is_named_with_what_brings_it() -> None:
    program = "import sys; sys.modules['aiohttp'] = None; from headway.cli import main; main()"
    words = ["shadow", "--url", "http://127.0.0.1:1", "--policies", "vllm"]
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (2, f"error: {missing('aiohttp')}\n")
    assert missing("aiohttp") == "aiohttp is not installed; `headway doctor` names the packages"
    assert missing("vllm").endswith("for CUDA, or for a CPU `make setup` in a checkout")


def test_commands_are_named_as_their_modules() -> None:
    assert all(name.isidentifier() for name in COMMANDS)


OPTIONAL = (*COME_BY, "multipart", "sklearn", "lightgbm", "torch", "headway_reproduce")


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        "policies --json",
        "simulate --hardware h100 --model Llama-3.1-8B --policies vllm,headway --trace TRACE --json",
        "plan --hardware h100 --model Llama-3.1-8B --gpus 1 --policies vllm --slo-ttft 1 --trace TRACE --jobs 1",
    ],
)
def test_what_simulates_needs_no_package_of_an_extra(words: str) -> None:
    blocked = f"import sys; sys.modules |= dict.fromkeys({OPTIONAL})"
    trace = "gen:poisson:rate=8/input=sharegpt/output=sharegpt/count=20"
    given = words.replace("TRACE", trace).split()
    done = subprocess.run(
        [sys.executable, "-c", f"{blocked}; from headway.cli import main; main()", *given],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize(
    ("typed", "at", "offered"),
    [("headway ser", 1, ["serve"]), ("headway serve --slo", 2, ["--slo-ttft", "--slo-tbt"])],
)
def test_the_shell_completes_commands_and_their_flags(typed: str, at: int, offered: list[str]) -> None:
    asked = {"_HEADWAY_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(at)}
    done = subprocess.run(
        [sys.executable, "-m", "headway.cli"],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == offered, done.stderr

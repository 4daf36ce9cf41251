"""Every command of README and tutorial does what its page says: taken from the page, and run.

Changed for the test are only the port, the model (the demo's in place of a hub's) and the folder. Benches that take an
hour are asked whether they know their flags, and targets of the Makefile whether they are there.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import dropwhile, takewhile
from pathlib import Path
from urllib.request import urlopen

import pytest

from headway.engine.demo_model import resolve_model
from headway.engine.servers.server_command import server_command
from headway.engine.settings import EngineSettings
from tests.test_documents import FENCE, ROOT

README, TUTORIAL = ROOT / "README.md", ROOT / "docs" / "tutorial.md"
PROGRAMS = Path(sys.executable).parent
HUB_MODEL = "Qwen/Qwen3-8B"
SHELL = re.compile(r"(?ms)^```sh\n(.*?)^```$")
INSTALL = re.compile(r"^\| [^|]+ \| `(pip install [^`]+|make [^`]+)` \|$", re.M)
PYTHON = re.compile(r"(?ms)^```python\n(.*?)^```$")
VARIABLE = re.compile(r"[A-Z_]+=\S*")
READY_S = 300.0


def commands(page: Path) -> list[str]:
    """The shell commands of a page, each as it would be pasted; a quote or a backslash goes on in the next line."""
    found: list[str] = []
    for block in SHELL.findall(page.read_text()):
        held = ""
        for line in block.splitlines(keepends=True):
            held += line
            try:
                whole = not held.endswith("\\\n") and bool(shlex.split(held, comments=True))
            except ValueError:
                continue  # a quote is open
            if whole:
                found.append(held.strip())
            if whole or not held.strip():
                held = ""
        assert not held.strip(), f"{page.name} ends in the middle of {held!r}"
    return found


def split(command: str) -> list[str]:
    """The words of a command, without its comment and the variables that it sets."""
    words = shlex.split(command.replace("\\\n", " "), comments=True)
    return list(dropwhile(VARIABLE.fullmatch, words))


def variables(command: str) -> dict[str, str]:
    """The variables that a command sets for itself."""
    words = takewhile(VARIABLE.fullmatch, shlex.split(command.replace("\\\n", " "), comments=True))
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def kind(command: str) -> str:
    """The way in which a command is tested."""
    program, *words = split(command)
    if program == "python" and words[0].startswith("bench/"):
        return "bench"
    if Path(program).name == "headway":
        return "serve" if words[0] == "serve" else "headway"
    return {"make": "make", "curl": "curl", "vllm": "serve"}[program]  # any other one needs a test of its own


def of_kind(page: Path, *kinds: str) -> list[str]:
    return [command for command in commands(page) if kind(command) in kinds]


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The command as a shell runs it, with this environment's programs."""
    here = command.replace(".venv/bin/", "")
    path = {"PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}"}
    words = ["bash", "-euo", "pipefail", "-c", here]
    return subprocess.run(
        words, cwd=folder, env={**os.environ, **path}, capture_output=True, text=True, check=False
    )


def test_commands_are_found_whole() -> None:
    assert [kind(command) for command in commands(TUTORIAL)] == [
        *("make", "serve", "curl", "headway", "headway", "headway", "headway", "make")
    ]
    (curl,) = of_kind(TUTORIAL, "curl")
    assert curl.endswith("}}'")
    assert {kind(command) for command in commands(README)} == {"make", "bench", "headway", "serve"}
    assert sum(FENCE.findall(page.read_text()) != [] for page in (README, TUTORIAL)) == 2


@pytest.mark.parametrize("command", [*of_kind(README, "make"), *of_kind(TUTORIAL, "make")])
def test_the_makefile_has_the_target(command: str) -> None:
    target = shlex.split(command, comments=True)[1]
    done = run(f"make --dry-run {target}", ROOT)
    assert done.returncode == 0, done.stderr


@pytest.mark.engine
@pytest.mark.parametrize("command", of_kind(README, "bench"))
def test_a_bench_knows_its_flags(command: str) -> None:
    _, script, *words = split(command)
    shown = run(f"python {script} --help", ROOT)
    assert shown.returncode == 0, shown.stderr
    flags = {word for word in words if word.startswith("--")}
    assert {flag for flag in flags if not re.search(rf"{flag}\b", shown.stdout)} == set()


def test_an_install_line_names_what_can_be_installed() -> None:
    lines = INSTALL.findall(README.read_text())
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert len(lines) >= 4
    for line in lines:
        for word in shlex.split(line)[2:]:
            path, _, named = word.partition("[")
            if path.startswith("."):
                assert (ROOT / path / "pyproject.toml").exists(), line
                assert set(filter(None, named.rstrip("]").split(","))) <= extras.keys(), line


@pytest.mark.slow
@pytest.mark.parametrize("command", [*of_kind(README, "headway"), *of_kind(TUTORIAL, "headway")])
def test_a_command_that_needs_no_server_runs(command: str, tmp_path: Path) -> None:
    if "--url" in command:
        pytest.skip("asks the tutorial's server, below")
    done = run(command, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "goodput" in done.stdout + done.stderr


def test_the_simulation_of_the_readme_shows_the_figures_of_its_row() -> None:
    text = README.read_text()
    (row,) = (line for line in text.splitlines() if line.startswith("| simulated"))
    assert "22 requests/s" in row
    (command,) = of_kind(README, "headway")
    assert "rate=22/" in command


@contextmanager
def serving(words: list[str], folder: Path, env: Mapping[str, str]) -> Iterator[int]:
    """The server of a command on a free port, once it is ready to answer; it is stopped afterwards."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    program, *words = words
    at = [words[: words.index("--")], words[words.index("--") :]] if "--" in words else [words, []]
    before = [*at[0][: _of_port(at[0])], "--port", str(port)]
    with (folder / "log").open("w+") as log:
        started = subprocess.Popen(
            [PROGRAMS / Path(program).name, *before, *at[1]],
            cwd=folder,
            env={**os.environ, **env},
            stdout=log,
            stderr=log,
        )
        try:
            _wait(f"http://127.0.0.1:{port}/v1/models", started, folder / "log")
            yield port
        finally:
            started.terminate()
            started.wait()


def _of_port(words: list[str]) -> int:
    """The port that the page names in a command, which is the last word there."""
    return words.index("--port") if "--port" in words else len(words)


def _wait(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until_s = time.monotonic() + READY_S
    while True:
        assert process.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < until_s, log.read_text()[-3000:]
        try:
            with urlopen(address, timeout=10):
                return
        except OSError:
            time.sleep(0.5)


@pytest.mark.engine
@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_tutorial_works_word_by_word(tmp_path: Path) -> None:
    (serve,) = of_kind(TUTORIAL, "serve")
    asking = [command for command in of_kind(TUTORIAL, "curl", "headway") if "127.0.0.1:8000" in command]
    assert len(asking) == 4
    with serving(split(serve), tmp_path, variables(serve)) as port:
        for command in asking:
            done = run(command.replace("8000", str(port)), tmp_path)
            assert done.returncode == 0, done.stderr
            assert "error" not in done.stdout, done.stdout
        assert "request cmpl-first" in done.stdout
        with urlopen(f"http://127.0.0.1:{port}/", timeout=10) as page:
            assert page.url.endswith("/dashboard")
    assert (tmp_path / "records.jsonl").read_text().count("\n") == 200


def served_name(port: int) -> str:
    with urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=10) as answer:
        name: str = json.load(answer)["data"][0]["id"]
        return name


@pytest.mark.engine
@pytest.mark.timeout(900)
@pytest.mark.parametrize("command", of_kind(README, "serve"))
def test_the_readme_serves_and_answers_its_request(command: str, tmp_path: Path) -> None:
    assert HUB_MODEL in command
    here = split(command.replace(HUB_MODEL, "demo"))
    if here[0] == "vllm":  # what `headway serve` chooses for a CPU, vLLM is told
        here[2] = resolve_model("demo")
        chosen = server_command("demo", EngineSettings(), ("127.0.0.1", 8000)).chosen
        here += split(" ".join(chosen))
    (request,) = PYTHON.findall(README.read_text())
    with serving(here, tmp_path, variables(command)) as port:
        program = request.replace("127.0.0.1:8000", f"127.0.0.1:{port}").replace(HUB_MODEL, served_name(port))
        done = run(f"python -c {shlex.quote(program)}", tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()

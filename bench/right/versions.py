"""Headway beside several versions of vLLM: `python bench/right/versions.py --json`, or `make versions`.

The CPU build in `.venv` is one version. Of any other, pip downloads the published wheel; its Python files are laid over
the compiled parts of the CPU build, in a folder of the user's cache, and processes that have this folder first on their
path import that version. The environment stays as it is. No model runs: schedulers and KV managers are Python.

For each version:

- `names`: which of the vLLM names in use are gone or changed (`engine/vllm/seams.py`);
- `features`: every preset with every feature (`version_features.py`): differences without a reason, faults of the
  watchdog and of policies, requests lost, and, under preset `vllm`, steps unlike stock's;
- `parity` and `conformance`: these benches, with fewer requests;
- `tests`: the model-free tests of the scheduler.

Versions run side by side. Exit status 1 if anything of that is wrong. `--readme` writes the table, for
README.md and `headway doctor`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PACKAGED = ROOT / "src/headway/engine/vllm/compatibility.json"
COMMAND = "python bench/right/versions.py --readme"
BEGIN, END = "<!-- versions.py --readme -->", "<!-- end -->"
PRESETS = "vllm,vllm-v0,fastserve,headway"
"""Presets for conformance here: with stock's steps, with pauses, with swaps, and with all."""
TESTS = ("tests/engine", "--ignore=tests/engine/servers")
"""Left out: vLLM's commands, which need more packages, and what is tested here at length (tests/bench/right)."""
FAULTS = "unexplained", "watchdog_faults", "policy_faults", "unended", "leaked", "unlike_stock"


@dataclass(frozen=True, slots=True)
class Installed:
    """The CPU build of this environment: its folder and the number of its version."""

    folder: Path
    version: str


def installed() -> Installed:
    """The CPU build, found without importing it, which would take seconds."""
    spec = find_spec("vllm")
    if spec is None or spec.origin is None:
        raise SystemExit("no vLLM is installed here; accepted: an environment that `make setup` made")
    folder = Path(spec.origin).parent
    found: dict[str, Any] = {}
    exec((folder / "_version.py").read_text(), found)
    return Installed(folder, str(found["version"]).partition("+")[0])


def laid_out(version: str, cpu_build: Installed) -> Path:
    """A folder from which `import vllm` is this version; its Python files (about 60 MB) are downloaded once."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headway" / "vllm"
    folder = home / version
    if not folder.is_dir():
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{version}-", dir=home) as building:
            unpacked = Path(building, version)
            with zipfile.ZipFile(downloaded(version, Path(building))) as wheel:
                wheel.extractall(unpacked, [name for name in wheel.namelist() if name.endswith(".py")])
            unpacked.rename(folder)
    lay_over(folder, version, cpu_build)
    return folder


def downloaded(version: str, folder: Path) -> Path:
    """Download the wheel of a version with pip."""
    say(f"vLLM {version}: downloading its wheel, once")
    options = ["--no-deps", "--only-binary", ":all:", "--dest", str(folder), f"vllm=={version}"]
    done = subprocess.run([sys.executable, "-m", "pip", "download", *options], stdout=2, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        raise SystemExit(f"pip could not download vllm=={version}; accepted: a published version")
    return wheels[0]


def lay_over(folder: Path, version: str, cpu_build: Installed) -> None:
    """Link the compiled parts of the CPU build to the Python files of another version, and write a CPU build's
    metadata.

    vLLM tells by the version in the metadata that it was built for a CPU.
    """
    for part in cpu_build.folder.rglob("*.so"):
        link = folder / "vllm" / part.relative_to(cpu_build.folder)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(part.resolve())
    metadata = folder / f"vllm-{version}+cpu.dist-info" / "METADATA"
    metadata.parent.mkdir(exist_ok=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")


def measured(version: str, presets: str) -> dict[str, Any]:
    """Run all parts for one version, one after another."""
    started_s = time.monotonic()
    environment = environment_of(version)
    only = ["--presets", presets] if presets else []
    found = answer(version, ["bench/right/version_features.py", *only], environment)
    imported = found.get("version", "none").partition("+")[0]
    if imported != version:
        return {"version": version, "error": found.get("error", f"vLLM {imported} was imported")}
    small = ["--requests", "40", "--presets", presets or PRESETS]
    return {
        **found,
        "version": version,
        "parity": answer(version, ["bench/right/parity.py", "--requests", "120"], environment),
        "conformance": answer(version, ["bench/right/conformance.py", *small], environment),
        "tests": tested(version, environment),
        "seconds": round(time.monotonic() - started_s),
    }


def environment_of(version: str) -> dict[str, str]:
    """An environment in which a process imports this version, and computes on one core."""
    cpu_build = installed()
    path = [] if version == cpu_build.version else [str(laid_out(version, cpu_build))]
    path += filter(None, [os.environ.get("PYTHONPATH")])
    threads = {"OMP_NUM_THREADS": "1"}
    return {**os.environ, **threads, "VLLM_LOGGING_LEVEL": "ERROR", "PYTHONPATH": os.pathsep.join(path)}


def answer(version: str, command: list[str], environment: dict[str, str]) -> dict[str, Any]:
    """The JSON object printed by a bench."""
    say(f"vLLM {version}: {command[0]} ...")
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        return {"error": f"{command[0]} ended with status {done.returncode}; see its messages on stderr"}
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def tested(version: str, environment: dict[str, str]) -> dict[str, Any]:
    """How many of the model-free tests passed, and which did not."""
    say(f"vLLM {version}: tests ...")
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "results.xml")
        options = ["-q", "-m", "vllm", "-p", "no:cacheprovider", f"--junitxml={results}"]
        subprocess.run(
            [sys.executable, "-m", "pytest", *options, *TESTS],
            cwd=ROOT,
            env=environment,
            stdout=2,
            check=False,
        )
        if not results.exists():
            return {"passed": 0, "failed": ["pytest did not start; see its messages on stderr"]}
        cases = list(ElementTree.parse(results).iter("testcase"))
    failed = [
        case.get("name", "")
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    ]
    skipped = sum(case.find("skipped") is not None for case in cases)
    return {"passed": len(cases) - len(failed) - skipped, "failed": failed}


def faults(found: dict[str, Any]) -> list[str]:
    """Everything that is wrong with a version, in words."""
    if "error" in found:
        return [found["error"]]
    wrong = [f"{name} is gone" for name in found["names"]["gone"]]
    for name, row in found["features"].items():
        wrong += [f"{name}: {row[fault]} {fault}" for fault in FAULTS if row[fault]]
        wrong += [f"{name}: {error}" for error in row["errors"]]
    wrong += [f"{name}: failed" for name, served in found["options"].items() if served == "failed"]
    parity, conformance = found["parity"], found["conformance"]
    if parity.get("same") != 1.0:
        wrong.append(f"parity: {parity.get('error', parity.get('same'))}")
    if conformance.get("unexplained") != 0:
        wrong.append(f"conformance: {conformance.get('error', conformance.get('unexplained'))}")
    return wrong + [f"test {name} failed" for name in found["tests"]["failed"]]


def table(found: dict[str, Any]) -> str:
    """The table of one version, feature by feature."""
    if "error" in found:
        return f"vLLM {found['version']}: {found['error']}"
    lines = [f"vLLM {found['version']}, {found['seconds']} s"]
    names = found["names"]
    lines.append(f"  names in use: {len(names['gone'])} gone, {len(names['changed'])} changed")
    for name, row in found["features"].items():
        told = ", ".join(f"{row[fault]} {fault}" for fault in FAULTS if row[fault]) or "nothing wrong"
        lines.append(f"  {name}: {row['served']}; {row['runs']} runs, {row['steps']} steps, {told}")
    lines += [f"  {name}: {served}" for name, served in found["options"].items()]
    parity, conformance, tests = found["parity"], found["conformance"], found["tests"]
    lines.append(f"  parity: {parity.get('same', parity)} of {parity.get('steps')} steps as stock")
    lines.append(
        f"  conformance: {conformance.get('unexplained', conformance)} of the simulator's decisions differ"
    )
    lines.append(f"  tests: {tests['passed']} passed, {len(tests['failed'])} failed")
    return "\n".join(lines)


def served(results: list[dict[str, Any]]) -> dict[str, dict[str, str]]:
    """Version -> feature or option -> how it is served, for `headway doctor` and README.md."""
    return {
        found["version"]: {name: row["served"] for name, row in found["features"].items()} | found["options"]
        for found in results
    }


def readme_table(table: dict[str, dict[str, str]]) -> str:
    """The table for README.md: versions across, with one row for all features that are served alike in each version."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for name in next(iter(table.values())):
        alike.setdefault(tuple(features[name] for features in table.values()), []).append(name)
    rows = [["vLLM", *table], ["---"] * (len(table) + 1)]
    rows += [["; ".join(names), *cells] for cells, names in alike.items()]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def write_readme(results: list[dict[str, Any]]) -> None:
    """Put the table between README.md's markers, and into the package's data."""
    text = README.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"README.md has no table between {BEGIN} and {END}")
    steps = sum(row["steps"] for found in results for row in found["features"].values())
    caption = f"Made by `{COMMAND}`, {steps:,} steps of all presets."
    table = served(results)
    README.write_text(f"{before}{BEGIN}\n{readme_table(table)}\n\n{caption}\n{END}{after}")
    PACKAGED.write_text(json.dumps(table, indent=2) + "\n")


def say(line: str) -> None:
    """Write a line to stderr, as stdout is for the result."""
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    """Print a table for each version, or with --json `{"0.33.0": {...}}`."""
    from headway.engine.vllm.seams import TESTED

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout in place of tables")
    parser.add_argument("--readme", action="store_true", help="write the table of README.md")
    parser.add_argument(
        "--version",
        action="append",
        metavar="V",
        help=f"a version of vLLM, such as 0.33.0; may be given again (default {', '.join(sorted(TESTED))})",
    )
    parser.add_argument("--presets", default="", help="only these, comma-separated (default all there are)")
    arguments = parser.parse_args()
    versions = arguments.version or sorted(TESTED)
    with ThreadPoolExecutor(min(len(versions), os.cpu_count() or 1)) as pool:
        results = list(pool.map(lambda version: measured(version, arguments.presets), versions))
    if arguments.json:
        print(json.dumps({found["version"]: found for found in results}))
    else:
        print("\n\n".join(map(table, results)))
    wrong = [f"vLLM {found['version']}: {fault}" for found in results for fault in faults(found)]
    for line in wrong:
        say(line)
    if arguments.readme and not any("error" in found for found in results):
        write_readme(results)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())

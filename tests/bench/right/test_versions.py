"""Every feature of vLLM's scheduler in short; all presets, in all tested versions: `bench/right/versions.py`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.right.conformance import make_script
from bench.right.version_features import FEATURES, POLICY, REFUSED, FeatureCell, feature_row, run
from bench.right.versions import BEGIN, END, README, Installed, faults, lay_over, readme_table, served
from headway.engine.vllm.inspection import compatibility

PRESETS = ("vllm", "headway", "fastserve")


@pytest.mark.vllm
@pytest.mark.parametrize("feature", FEATURES)
def test_presets_serve_with_a_feature_without_unexplained_differences(feature: str) -> None:
    row = feature_row(feature, PRESETS, [each.request for each in make_script(16, seed=3)])
    assert (row["wrong"], row["errors"], row["served"]) == ({}, [], POLICY)


@pytest.mark.vllm
@pytest.mark.parametrize("preset", ["headway", "fastserve"])
def test_with_more_adapters_than_slots_paused_requests_hold_up_no_others(preset: str) -> None:
    script = [each.request for each in make_script(40, seed=3)]
    steps = {}
    for feature in ("synchronous scheduling", "LoRA, more adapters than slots"):
        cell = FeatureCell()
        run(preset, FEATURES[feature], script, cell, asynchronous=False)
        assert (cell.wrong, cell.evidence > 0) == (0, True)
        steps[feature] = cell.steps
    assert steps["LoRA, more adapters than slots"] < 1.3 * steps["synchronous scheduling"]


def test_another_version_lies_over_the_compiled_parts_and_is_found_by_its_number(tmp_path: Path) -> None:
    built = tmp_path / "site" / "vllm"
    (built / "inner").mkdir(parents=True)
    (built / "_C.abi3.so").write_bytes(b"compiled")
    (built / "inner" / "more.so").write_bytes(b"too")
    folder = tmp_path / "laid out"
    (folder / "vllm").mkdir(parents=True)
    (folder / "vllm" / "__init__.py").write_text("")
    lay_over(folder, "9.8.7", Installed(built, "0.32.0"))
    assert (folder / "vllm" / "_C.abi3.so").read_bytes() == b"compiled"
    assert (folder / "vllm" / "inner" / "more.so").read_bytes() == b"too"
    asked = "import importlib.metadata, vllm; print(importlib.metadata.version('vllm'), vllm.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", asked],
        env={**os.environ, "PYTHONPATH": str(folder)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert done.stdout.split(" ", 1) == ["9.8.7+cpu", f"{folder}/vllm/__init__.py\n"]


def found(version: str, **of_lora: Any) -> dict[str, Any]:
    """The part of a version's result that the report uses."""
    nothing = dict.fromkeys(("unexplained", "watchdog_faults", "policy_faults", "unended"), 0)
    row = {**nothing, "leaked": 0, "unlike_stock": 0, "errors": [], "served": POLICY, **of_lora}
    return {
        "version": version,
        "names": {"gone": [], "changed": []},
        "features": {"LoRA": row},
        "options": {"`--runner pooling`": REFUSED},
        "parity": {"same": 1.0},
        "conformance": {"unexplained": 0},
        "tests": {"passed": 9, "failed": []},
    }


def test_all_that_is_wrong_with_a_version_is_named() -> None:
    assert faults(found("0.32.0")) == []
    assert faults({"version": "9", "error": "another version was imported"}) == [
        "another version was imported"
    ]
    wrong = found("9", unexplained=3, errors=["sjf: KeyError: 'a'"])
    wrong["names"]["gone"] = ["vllm:lost"]
    wrong["parity"] = {"error": "no parity"}
    wrong["conformance"]["unexplained"] = 2
    wrong["tests"]["failed"] = ["test_a"]
    assert faults(wrong) == [
        "vllm:lost is gone",
        "LoRA: 3 unexplained",
        "LoRA: sjf: KeyError: 'a'",
        "parity: no parity",
        "conformance: 2",
        "test test_a failed",
    ]


def test_the_readme_has_versions_across_and_a_row_for_all_features_that_come_to_the_same() -> None:
    assert readme_table(served([found("0.32.0"), found("0.33.0", served="stock order")])).splitlines() == [
        "| vLLM | 0.32.0 | 0.33.0 |",
        "| --- | --- | --- |",
        "| LoRA | policy | stock order |",
        "| `--runner pooling` | refused | refused |",
    ]
    refused = [found("0.32.0", served=REFUSED), found("0.33.0", served=REFUSED)]
    assert readme_table(served(refused)).splitlines()[2:] == [
        "| LoRA; `--runner pooling` | refused | refused |"
    ]


def test_readme_and_package_have_the_same_table() -> None:
    _, _, rest = README.read_text().partition(BEGIN)
    shown, _, _ = rest.partition(END)
    assert readme_table(compatibility()) in shown

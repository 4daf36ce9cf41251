"""`headway doctor`: what it says of machines that are well, and of those that lack something."""

from __future__ import annotations

import json

import pytest

from headway.cli import doctor
from headway.cli.doctor import Finding, extra_finding, feature_findings, line, plugin_finding, version_finding
from headway.engine.vllm import inspection
from headway.engine.vllm.inspection import FeatureState, Inspected, compatibility
from headway.errors import SeamError
from tests.cli.conftest import Headway

WELL = Inspected(
    "0.33.0", (FeatureState("its scheduler", "Headway's scheduler does not start.", ()),), ("H100, 80 GiB",)
)


def test_a_package_that_lacks_is_named_in_a_command_that_works_without_an_index_entry_of_ours() -> None:
    requirements = [
        "pytest>=9; extra == 'serve'",
        "no-such>=0.2; extra == 'serve'",
        "pytest>=99; extra == 'fit'",
        "x",
    ]
    serve = extra_finding("serve", requirements)
    assert (serve.state, serve.mends) == ("missing", "pip install 'no-such>=0.2'")
    assert extra_finding("fit", requirements).mends == "pip install 'pytest>=99'"
    assert extra_finding("fit", ["pytest>=9; extra == 'fit'"]).state == "ok"
    assert extra_finding("reproduce", ["no-such; extra == 'reproduce'"]).mends == (
        "pip install ./reproduce, in a checkout"
    )


@pytest.mark.parametrize(
    ("version", "state", "says"),
    [
        ("0.32.0+cpu", "ok", "0.32.0+cpu, a tested version"),
        ("0.99.1", "ok", "0.99.1, not a tested version (0.32.0, 0.33.0): a self-check runs at each start"),
        ("dev", "ok", "dev, not a tested version (0.32.0, 0.33.0): a self-check runs at each start"),
        ("0.31.9", "wrong", "0.31.9, older than 0.32"),
        (None, "missing", "not installed; `simulate` and `plan` work without"),
    ],
)
def test_the_version_of_vllm_is_judged(version: str | None, state: str, says: str) -> None:
    found = version_finding(version)
    assert (found.state, found.says) == (state, says)
    assert (found.mends is None) == (state == "ok")


@pytest.mark.parametrize(
    ("allowed", "mends"),
    [
        (None, None),
        ("headway,other", None),
        ("other", "export VLLM_PLUGINS=other,headway"),
        ("", "export VLLM_PLUGINS=headway"),
    ],
)
def test_a_list_of_plugins_without_ours_is_wrong(allowed: str | None, mends: str | None) -> None:
    assert plugin_finding(allowed).mends == mends


def test_a_feature_that_this_vllm_does_not_carry_is_named_with_what_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headway.engine.machine.is_cpu_build", lambda: False)
    lost = FeatureState(
        "its own metrics", "The headway_* totals on /metrics stay empty.", ("vllm.x:A.b", "vllm.x:C")
    )
    count, wrong = feature_findings(Inspected("0.40.0", (*WELL.features, lost), ()))
    assert count.says.startswith("1 of 2 ")
    assert line(wrong) == (
        "wrong   its own metrics: this vLLM lacks or changed A.b, C. The headway_* totals on /metrics stay empty; "
        "run: pip install vllm==0.33.0"
    )


def test_every_tested_version_has_a_row_for_every_feature() -> None:
    table = compatibility()
    assert table
    assert len({tuple(features) for features in table.values()}) == 1
    assert {how for features in table.values() for how in features.values()} == {
        "policy",
        "stock order",
        "refused",
    }


def test_a_machine_that_is_well_ends_with_code_0(headway: Headway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(doctor.PLUGINS_VARIABLE, raising=False)
    monkeypatch.setattr(doctor, "_vllm_version", lambda: "0.33.0")
    monkeypatch.setattr(inspection, "inspect_vllm", lambda: WELL)
    monkeypatch.setattr("headway.engine.machine.is_cpu_build", lambda: False)
    ended = headway("doctor")
    lines = ended.out.splitlines()
    assert ended.code == 0, ended.out
    assert "ok      GPU 0: H100, 80 GiB" in lines
    decided, stock, refused = (each for each in lines if "with vLLM's: " in each)
    assert decided.startswith("ok      ")
    assert decided.endswith(": the policy decides")
    assert stock == "note    with vLLM's: --runner pooling: requests are served in stock order"
    assert refused == "note    with vLLM's: --no-enable-chunked-prefill: `headway serve` refuses to start"


@pytest.mark.parametrize(
    ("on_cpu", "mends"),
    [
        (False, "pip install --force-reinstall vllm==0.32.0"),
        (True, "rm .venv/headway-setup.json && make setup, in a checkout"),
    ],
)
def test_a_vllm_that_cannot_be_imported_ends_with_code_1_and_its_last_words(
    headway: Headway, monkeypatch: pytest.MonkeyPatch, on_cpu: bool, mends: str
) -> None:
    def broken() -> Inspected:
        raise SeamError("vLLM cannot be imported: ImportError: libcudart.so.13")

    monkeypatch.setattr(doctor, "_vllm_version", lambda: "0.32.0")
    monkeypatch.setattr("headway.engine.machine.is_cpu_build", lambda: on_cpu)
    monkeypatch.setattr(inspection, "inspect_vllm", broken)
    ended = headway("doctor", "--json")
    assert ended.code == 1
    last = Finding(**json.loads(ended.out)[-1])
    assert last.says.endswith("libcudart.so.13")
    assert last.mends == mends


def test_without_vllm_nothing_is_imported_and_nothing_is_wrong(
    headway: Headway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_vllm_version", lambda: None)
    ended = headway("doctor", "--json")
    assert ended.code == 0
    assert [each["state"] for each in json.loads(ended.out) if each["what"] == "vLLM"] == ["missing"]


@pytest.mark.engine
def test_the_vllm_that_is_here_carries_every_feature() -> None:
    found = inspection.inspect_vllm()
    assert found.version.partition("+")[0] in compatibility()
    assert [feature for feature in found.features if not feature.works] == []

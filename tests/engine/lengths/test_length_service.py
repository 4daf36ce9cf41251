from __future__ import annotations

import asyncio
import logging
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import REGISTRY

from headway.engine.lengths.service import LengthService, made_predictor, open_service
from headway.errors import ConfigError
from headway.predict.lengths.facts import RequestFacts

SPEC = "learned:first_answers=20,trees=5"
FIT_S = 20.0
"""How long a fit may take to come; it takes milliseconds."""


def config(**settings: Any) -> Any:
    """What of vLLM's configuration is read."""
    return SimpleNamespace(additional_config={"headway": settings})


def service(api_server: int = 0, **settings: Any) -> LengthService:
    opened = open_service(config(predictor=SPEC, **settings), api_server)
    assert opened is not None
    return opened


def teach(served: LengthService, answers: int) -> None:
    """Answers three times as long as their prompts, all of which came before the first ended."""

    async def arrive() -> None:
        for number in range(answers):
            facts = RequestFacts(num_prompt_tokens=5 + number % 40, max_output_tokens=500)
            (await served.forecasts.arrive(facts)).ended(3 * facts.num_prompt_tokens)

    asyncio.run(arrive())


def wait_for_fit(predictor: Any) -> None:
    until_s = time.monotonic() + FIT_S
    while not predictor.ready:
        assert time.monotonic() < until_s
        time.sleep(0.01)


@pytest.mark.parametrize(
    "additional_config", [None, {"headway": {}}, {"headway": {"policy": "headway", "predictor": "none"}}]
)
def test_where_nobody_wants_lengths_there_is_no_service(additional_config: object) -> None:
    assert open_service(SimpleNamespace(additional_config=additional_config), 0) is None


def test_a_policy_that_goes_by_lengths_has_them_learned_unasked() -> None:
    served = open_service(config(policy="headway"), 0)
    assert served is not None
    teach(served, 60)
    wait_for_fit(served.forecasts.predictor)
    served.close()


def test_it_fits_beside_the_requests_and_keeps_what_it_learned(tmp_path: Path) -> None:
    file = tmp_path / "lengths.npz"
    served = service(length_model=str(file), api_server=0)
    teach(served, 60)
    wait_for_fit(served.forecasts.predictor)
    served.close()
    served.close()
    assert file.is_file()
    again = service(length_model=str(file))
    arrival = asyncio.run(again.forecasts.arrive(RequestFacts(num_prompt_tokens=30, max_output_tokens=500)))
    again.close()
    assert arrival.estimate is not None
    # 90 by the rule it was taught; few trees of few answers are not exact.
    assert arrival.estimate.tokens == pytest.approx(90, rel=0.35)


def test_fits_are_counted_when_the_next_answer_ends() -> None:
    served = service(api_server=2000)
    teach(served, 25)
    wait_for_fit(served.forecasts.predictor)
    teach(served, 1)
    served.close()
    counted = REGISTRY.get_sample_value("headway_length_refits_total", {"api_server": "2000"})
    assert counted is not None
    assert counted >= 1


def test_another_api_server_learns_alone_and_keeps_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "lengths.npz"
    with caplog.at_level(logging.WARNING):
        served = service(length_model=str(file), api_server=1)
    assert f"API server 1 learns lengths for itself; {file} keeps those of the first one" in caplog.text
    teach(served, 30)
    served.close()
    assert not file.exists()


def test_a_library_that_does_not_load_is_a_reason_not_to_serve_only_if_it_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "lightgbm.py").write_text("raise OSError('libgomp.so.1: cannot open shared object file')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "lightgbm", raising=False)
    with caplog.at_level(logging.WARNING):
        assert open_service(config(policy="headway"), 0) is None
    assert "no lengths are predicted: learning answer lengths needs LightGBM (libgomp.so.1: " in caplog.text
    for asked in ({"predictor": "learned"}, {"policy": "headway", "length_model": str(tmp_path / "file")}):
        with pytest.raises(ConfigError, match=r"needs LightGBM \(libgomp"):
            open_service(config(**asked), 0)


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("nonsense", "unknown length predictor 'nonsense'; accepted: "),
        ("hash:trees=0", "trees is 0; accepted: 1 or more"),
        ("st:/no/such/folder", "no/such/folder"),
    ],
)
def test_a_predictor_that_is_not_accepted_is_refused(spec: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        made_predictor(spec, None)


def test_a_damaged_file_is_one_clear_error(tmp_path: Path) -> None:
    file = tmp_path / "lengths.npz"
    file.write_bytes(b"not an archive")
    with pytest.raises(ConfigError, match=r"lengths\.npz is damaged"):
        made_predictor(SPEC, file)


def test_a_file_that_is_not_there_is_an_empty_start_and_its_folder_must_be(tmp_path: Path) -> None:
    assert not made_predictor(SPEC, tmp_path / "lengths.npz").ready
    with pytest.raises(ConfigError, match="has no folder to be in; accepted: a file in one that exists"):
        made_predictor(SPEC, tmp_path / "no" / "lengths.npz")

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headway.engine.lengths.service import LengthService, made_predictor, open_service
from headway.errors import ConfigError
from headway.predict.lengths.facts import RequestFacts

SPEC = "learned"


def config(**settings: Any) -> Any:
    """The part of vLLM's configuration that is read."""
    return SimpleNamespace(additional_config={"headway": settings})


def service(api_server: int = 0, **settings: Any) -> LengthService:
    opened = open_service(config(predictor=SPEC, **settings), api_server)
    assert opened is not None
    return opened


def teach(served: LengthService, answers: int) -> None:
    """Answers three times as long as their prompts."""
    for number in range(answers):
        facts = RequestFacts(num_prompt_tokens=5 + number % 40, max_output_tokens=500)
        served.forecasts.arrive(facts).ended(3 * facts.num_prompt_tokens)


@pytest.mark.parametrize(
    "additional_config", [None, {"headway": {}}, {"headway": {"policy": "headway", "predictor": "none"}}]
)
def test_where_nobody_wants_lengths_there_is_no_service(additional_config: object) -> None:
    assert open_service(SimpleNamespace(additional_config=additional_config), 0) is None


def test_a_policy_that_goes_by_lengths_has_them_learned_unasked() -> None:
    served = open_service(config(policy="headway"), 0)
    assert served is not None
    teach(served, 10)
    arrival = served.forecasts.arrive(RequestFacts(num_prompt_tokens=30, max_output_tokens=500))
    assert arrival.estimate is not None
    served.close()


def test_it_keeps_what_it_learned(tmp_path: Path) -> None:
    file = tmp_path / "lengths.npz"
    served = service(length_model=str(file), api_server=0)
    teach(served, 60)
    served.close()
    served.close()
    assert file.is_file()
    again = service(length_model=str(file))
    arrival = again.forecasts.arrive(RequestFacts(num_prompt_tokens=30, max_output_tokens=500))
    again.close()
    assert arrival.estimate is not None
    assert arrival.estimate.tokens == pytest.approx(90, rel=0.1)  # by the rule it was taught


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


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("nonsense", "unknown length predictor 'nonsense'; accepted: "),
        ("hash", "'hash' is gone: 'learned' reads prompts too"),
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

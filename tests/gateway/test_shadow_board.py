from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from headway.errors import UpstreamError
from headway.gateway.book.shadow_board import ShadowBoard
from tests.gateway.front import gateway
from tests.gateway.shadow_reports import DOUBTED, REPORT
from tests.gateway.upstream import upstream


def lines(board: ShadowBoard) -> list[str]:
    registry = CollectorRegistry()
    registry.register(board)
    return [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]


def test_the_last_report_is_there_by_policy() -> None:
    board = ShadowBoard(wall_clock=lambda: 1_800_000_030.0)
    assert lines(board) == []
    board.take(REPORT)
    found = lines(board)
    assert 'headway_shadow_goodput_ratio{policy="sarathi"} 0.75' in found
    assert 'headway_shadow_goodput_ratio{policy="live policy, simulated"} 0.55' in found
    assert 'headway_shadow_mean_jct_seconds{policy="live"} 4.0' in found
    assert not any(line.startswith('headway_shadow_p99_ttft_seconds{policy="sarathi"') for line in found)
    assert "headway_shadow_age_seconds 30.0" in found
    assert "headway_shadow_step_error_ratio 0.03" in found
    assert "headway_shadow_can_judge 1.0" in found


def test_where_the_simulation_cannot_judge_no_other_policy_has_figures() -> None:
    board = ShadowBoard()
    board.take(REPORT)
    board.take(DOUBTED)
    found = lines(board)
    assert "headway_shadow_can_judge 0.0" in found
    assert not any("sarathi" in line for line in found)


@pytest.mark.parametrize("line", [b"", b"{}", b"no report yet", REPORT[:-5], b"\xff"])
def test_what_is_no_report_leaves_the_last_one(line: bytes) -> None:
    board = ShadowBoard()
    board.take(REPORT)
    with pytest.raises(UpstreamError, match="the report of a shadow is not understood"):
        board.take(line)
    assert board.report is not None


async def test_a_gateway_shows_it_everywhere() -> None:
    async with upstream() as one, gateway(one) as front:
        assert (await front.get("/shadow")).json == {"report": None}
        front.app.shadows.take(REPORT)
        assert (await front.get("/shadow")).json["report"]["figures"]["sarathi"]["goodput"] == 0.75
        assert b'headway_shadow_goodput_ratio{policy="sarathi"} 0.75' in (await front.get("/metrics")).body
        assert (await front.get("/dashboard/state")).json["shadow"]["requests"] == 44


async def test_who_would_shadow_a_gateway_is_sent_to_its_instances() -> None:
    async with upstream("a") as one, gateway(one) as front:
        answer = await front.get("/v1/shadow/0-0")
        assert (answer.status, answer.error["code"]) == (404, "ask_an_instance")

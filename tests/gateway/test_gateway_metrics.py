from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from headway.loadgen.queries import scrape
from tests.gateway.front import PROMPT, Front, gateway
from tests.gateway.upstream import Turn, upstream


async def families(front: Front) -> dict[str, dict[tuple[str, ...], float]]:
    """Samples by name and the values of their labels, in the order of the labels' names."""
    answer = await front.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(answer.body.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(value for _, value in sorted(sample.labels.items()))] = (
                sample.value
            )
    return found


async def test_goodput_is_there_by_class_and_tenant() -> None:
    async def expire(turn: Turn) -> None:
        await turn.leave("expired")

    async with upstream("lp-0", delay_s=0.002) as instance, gateway(instance) as front:
        for tbt_ms in ("60000", "0.0001"):
            await front.post({**PROMPT, "stream": True}, x_slo_tbt_ms=tbt_ms, x_tenant="blue")
        instance.act = expire
        await front.post(PROMPT, x_slo_tbt_ms="60000", x_tenant="blue")
        await front.post({**PROMPT, "stream": True}, x_slo_tbt_ms="bad")
        await front.idle()
        found = await families(front)
        easy, hard = ("tbt=60s", "blue"), ("tbt=1e-07s", "blue")
        prefix = "headway_gateway_"
        assert found[f"{prefix}requests_offered_total"] == {easy: 2, hard: 1}
        assert found[f"{prefix}requests_total"]["finished", *easy] == 1
        assert found[f"{prefix}requests_total"]["expired", *easy] == 1
        assert found[f"{prefix}requests_met_total"] == {easy: 1, hard: 0}
        assert found[f"{prefix}goodput_ratio"] == {easy: 0.5, hard: 0}
        assert found[f"{prefix}output_tokens_total"] == {easy: 8, hard: 8}
        assert found[f"{prefix}time_to_first_token_seconds_count"] == {easy: 1, hard: 1}
        assert found[f"{prefix}time_between_tokens_seconds_bucket"]["+Inf", *easy] == 1
        assert found[f"{prefix}refusals_total"] == {("expired", "429"): 1, ("bad_request", "400"): 1}
        assert found[f"{prefix}instance_up"] == {("lp-0", "lp"): 1}
        assert found[f"{prefix}instance_served_total"] == {("lp-0", "lp"): 2}
        assert found[f"{prefix}instance_condition"]["ready", "lp-0", "lp"] == 1
        assert sum(found[f"{prefix}instance_condition"].values()) == 1
        assert "process_cpu_seconds_total" in found
        # What scrapes an instance can scrape the gateway.
        sums = await scrape(front.url, "headway_gateway_requests_")
        assert sums["headway_gateway_requests_met_total"] == 1


async def test_a_fresh_gateway_has_figures() -> None:
    async with upstream() as instance, gateway(instance) as front:
        found = await families(front)
        assert found["headway_gateway_live"] == {(): 0}
        assert found["headway_gateway_waiting"] == {(): 0}
        assert found["headway_gateway_resumed_total"] == {(): 0}

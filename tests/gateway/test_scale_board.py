from __future__ import annotations

import jsonschema  # type: ignore[import-untyped]

from headway.routing.scaling import Advice, Bounds, Served
from tests.gateway.front import gateway
from tests.gateway.upstream import upstream

ADVICE = Advice(
    needed=2,
    low=1,
    high=3,
    growth=1.2,
    replays={1: Served(0.75, 4.0), 2: Served(0.995, 1.5), 4: Served(1.0, 1.0)},
)


async def test_a_gateway_says_how_many_instances_there_should_be() -> None:
    async with upstream("a") as one, gateway(one, scale=Bounds(1, 4)) as front:
        assert front.app.scale.scaling is not None
        unknown = (await front.get("/v1/scale")).json
        assert (unknown["recommended"], unknown["reason"], unknown["growth"]) == (1, "unknown", None)
        front.app.scale.scaling.advised(ADVICE)
        assert (await front.get("/v1/scale")).json == {
            "recommended": 2,
            "low": 1,
            "high": 3,
            "reason": "more",
            "current": 1,
            "floor": 1,
            "ceiling": 4,
            "growth": 1.2,
            "replays": {
                "1": {"goodput": 0.75, "mean_jct_s": 4.0},
                "2": {"goodput": 0.995, "mean_jct_s": 1.5},
                "4": {"goodput": 1.0, "mean_jct_s": 1.0},
            },
            "doubt": None,
        }
        described = (await front.get("/openapi.json")).json
        [answer] = described["paths"]["/v1/scale"]["get"]["responses"]["200"]["content"].values()
        schema = {**answer["schema"], "components": described["components"]}
        jsonschema.Draft202012Validator(schema).validate((await front.get("/v1/scale")).json)
        metrics = (await front.get("/metrics")).body.decode().splitlines()
        assert "headway_recommended_instances 2.0" in metrics
        assert "headway_recommended_instances_low 1.0" in metrics
        assert "headway_recommended_instances_high 3.0" in metrics
        assert 'headway_recommended_instances_reason{reason="more"} 1.0' in metrics
        assert 'headway_recommended_instances_reason{reason="calm"} 0.0' in metrics


async def test_where_nothing_is_recommended_that_is_said() -> None:
    async with upstream("a") as one, gateway(one) as front:
        answer = await front.get("/v1/scale")
        assert (answer.status, answer.error["code"]) == (404, "no_scale")
        assert "--instances MIN..MAX" in answer.error["message"]
        assert "/v1/scale" not in (await front.get("/openapi.json")).json["paths"]
        assert b"headway_recommended" not in (await front.get("/metrics")).body

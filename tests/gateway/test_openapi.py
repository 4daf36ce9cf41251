from __future__ import annotations

import asyncio
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from headway.gateway.http.keys import Keys
from headway.gateway.http.options import GatewayOptions
from headway.gateway.openapi import describe
from headway.routing.scaling import Bounds
from tests.gateway.fleets import free_port
from tests.gateway.named_upstream import MODEL
from tests.gateway.openai_upstream import gateway

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema comes with vLLM, which is not installed")


def answers(path: str, method: str = "get") -> dict[str, Any]:
    """The described answers by status."""
    responses: dict[str, Any] = describe()["paths"][path][method]["responses"]
    return responses


def check(schema: dict[str, Any], body: Any) -> None:
    """Raises if the body is not what the description says."""
    jsonschema.Draft202012Validator({**schema, "components": describe()["components"]}).validate(body)


def schema_of(answer: dict[str, Any]) -> dict[str, Any]:
    """The JSON schema of a described answer."""
    if "$ref" in answer:
        answer = describe()["components"]["responses"][answer["$ref"].rpartition("/")[2]]
    schema: dict[str, Any] = answer["content"]["application/json"]["schema"]
    return schema


def test_every_reference_is_to_something_that_is_there() -> None:
    whole = describe()
    text = json.dumps(whole)
    references = {part.partition('"')[0] for part in text.split('"$ref": "')[1:]}
    assert references
    for reference in references:
        found: Any = whole
        for name in reference.removeprefix("#/").split("/"):
            found = found[name]


def test_every_schema_is_one() -> None:
    for schema in describe()["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


async def test_everything_described_is_served_and_is_as_described() -> None:
    async with gateway() as url, aiohttp.ClientSession() as session:
        for path, methods in describe()["paths"].items():
            if "get" not in methods or "{" in path:
                continue
            async with session.get(url + path) as answer:
                assert answer.status == 200, path
                described = answers(path)["200"].get("content", {})
                assert answer.content_type in described or not described, path
                if answer.content_type == "application/json":
                    check(schema_of(answers(path)["200"]), await answer.json())
        body = {"model": MODEL, "prompt": "one"}
        async with session.post(f"{url}/v1/completions", json=body) as answer:
            check(schema_of(answers("/v1/completions", "post")["200"]), await answer.json())


async def test_explanations_are_as_described() -> None:
    async with gateway() as url, aiohttp.ClientSession() as session:
        body, headers = {"model": MODEL, "prompt": "one"}, {"x-request-id": "mine"}
        async with session.post(f"{url}/v1/completions", json=body, headers=headers) as answer:
            assert answer.status == 200
        described = answers("/explain/{request_id}")
        for name, status in (("mine", 200), ("nobody", 404)):
            async with session.get(f"{url}/explain/{name}") as answer:
                assert answer.status == status
                check(schema_of(described[str(status)]), await answer.json())


async def test_refusals_are_as_described() -> None:
    async with gateway(GatewayOptions(keys=Keys({b"key": ""}))) as url, aiohttp.ClientSession() as session:
        async with session.get(f"{url}/dashboard/state") as answer:
            assert answer.status == 401
            check(schema_of(answers("/dashboard/state")["401"]), await answer.json())
        bearer = {"Authorization": "Bearer key"}
        async with session.post(f"{url}/v1/completions", data=b"{", headers=bearer) as answer:
            assert answer.status == 400
            check(schema_of(answers("/v1/completions", "post")["400"]), await answer.json())


@pytest.mark.parametrize("value", ["5e-324", "0", "nan", "inf", "1e400", "-1", "1e9", "\u00b2"])
async def test_a_target_that_is_none_is_refused_and_nothing_breaks(value: str) -> None:
    """Schemathesis found the first: more than 0 as milliseconds, and 0 as seconds."""
    async with gateway() as url, aiohttp.ClientSession() as session:
        body, headers = {"model": MODEL, "prompt": "one"}, {"x-slo-ttft-ms": value}
        async with session.post(f"{url}/v1/completions", json=body, headers=headers) as answer:
            assert answer.status == 400
            assert "accepted: milliseconds in" in (await answer.json())["error"]["message"]


async def test_a_request_id_longer_than_described_is_refused() -> None:
    described = describe()["components"]["schemas"]["CompletionRequest"]["properties"]["request_id"]
    async with gateway() as url, aiohttp.ClientSession() as session:
        for more, status in ((0, 200), (1, 400)):
            body = {"model": MODEL, "prompt": "one", "request_id": "r" * (described["maxLength"] + more)}
            async with session.post(f"{url}/v1/completions", json=body) as answer:
                assert answer.status == status


async def test_without_an_instance_it_says_when_to_try_again() -> None:
    async with gateway(url=f"http://127.0.0.1:{free_port()}") as url, aiohttp.ClientSession() as session:
        for path in ("/ready", "/v1/models"):
            async with session.get(url + path) as answer:
                assert answer.status == 503
                assert int(answer.headers["Retry-After"]) >= 1
                check(schema_of(answers(path)["503"]), await answer.json())


@pytest.mark.engine
async def test_it_survives_schemathesis(tmp_path: Path) -> None:
    """Requests made of the description, good and bad ones: no crash, and every answer as described.

    That good ones are accepted is not checked: a header and the body may not disagree, which no schema can say.
    """
    program = shutil.which("schemathesis", path=str(Path(sys.executable).parent)) or shutil.which(
        "schemathesis"
    )
    if program is None:
        pytest.skip(
            "schemathesis is not installed, so the description is not tried out with made-up requests"
        )
    options = GatewayOptions(drain_s=0.1, batch_dir=tmp_path / "batches")
    async with gateway(options, scale=Bounds(1, 2)) as url:
        process = await asyncio.create_subprocess_exec(
            *(program, "run", f"{url}/openapi.json", "--no-color", "--seed", "1", "--max-examples", "8"),
            *("--exclude-checks", "positive_data_acceptance", "--generation-database", "none"),
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await process.communicate()
        async with aiohttp.ClientSession() as session, session.get(f"{url}/ready") as answer:
            assert answer.status == 200, "it still serves"
    assert process.returncode == 0, said.decode()

"""`headway explain`: why one request of a running server took as long as it did."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from headway.setting import Setting, Shown

EPILOG = """Examples:

  headway explain --url http://127.0.0.1:8000                       # the last requests, newest first

  headway explain --url http://127.0.0.1:8000 cmpl-5f3a             # one of them, as its answer's `id` named it

  headway explain --url http://127.0.0.1:8000 my-request-7 --json   # as the client named it (X-Request-Id)

URL is a server that `headway serve` started, or a gateway, which asks the instances the request was at. Live requests
and the last ended ones (500; `headway serve --explain N`) can be explained. Of a request of the simulator:
`headway simulate --explain ID`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainFlags:
    """Which request, of which server."""

    url: Annotated[str, Setting("Base URL of the server or gateway.", "URL")]
    request_id: Annotated[
        str | None,
        Setting(
            "Id of the answer, or the client's own id. Without it, requests are listed.",
            "ID",
            shown=Shown(argument=True),
        ),
    ] = None
    api_key: Annotated[
        str | None, Setting("API key, sent as a bearer token.", "KEY", shown=Shown(env="OPENAI_API_KEY"))
    ] = None
    as_json: Annotated[bool, Setting("Print the server's answer as it is.", shown=Shown(flag="--json"))] = (
        False
    )


def explain(flags: ExplainFlags) -> None:
    """Tell what a request waited for, what ran before it or displaced it, its slack, and its predictions."""
    from headway.loadgen.queries import ask_about

    answer = asyncio.run(ask_about(flags.url, flags.request_id, flags.api_key))
    if flags.as_json:
        typer.echo(json.dumps(answer))
    elif flags.request_id is None:
        _list(answer["requests"])
    else:
        _tell(answer)


def _list(requests: list[dict[str, Any]]) -> None:
    """Print one line for each request."""
    typer.echo(f"{'came':>8}  {'ended':<10}  {'first token':>11}  {'whole':>9}  {'tokens':>6}  id")
    for one in requests:
        came = time.strftime("%H:%M:%S", time.localtime(one["at"]))
        tokens = one.get("output_tokens", one.get("tokens"))
        typer.echo(
            f"{came:>8}  {one['outcome']:<10}  {_seconds(one['ttft_s']):>11}  {_seconds(one['lasted_s']):>9}  "
            f"{tokens:>6}  {one['id']}"
        )


def _tell(answer: dict[str, Any]) -> None:
    """Print the gateway's account, if there is one, and each engine's."""
    if seen := answer.get("gateway"):
        if of := seen.get("batch"):
            closes = time.strftime("%d %b %H:%M:%S", time.localtime(of["expires_at"]))
            typer.echo(
                f"line {of['line']} ({of['custom_id']}) of {of['batch']}, whose window closes on {closes}: it runs in "
                "what the targets of others leave"
            )
        where = ", then ".join(seen["instances"]) or "no instance"
        prefill_s = seen.get("prefill_s")
        prompt = "" if prefill_s is None else f"prompt {_seconds(prefill_s)}, "
        if seen.get("program"):
            where = f"{where} for program {seen['program']}"
        typer.echo(
            f"at the gateway: {seen['outcome']}, sent to {where}; {prompt}first token {_seconds(seen['ttft_s'])} and "
            f"end {_seconds(seen['lasted_s'])} after it came\n"
        )
    for one in answer["requests"]:
        if instance := one.get("instance"):
            typer.echo(f"at {instance}:")
        typer.echo(f"{one['text']}\n")
    for one in answer.get("unanswered", []):
        typer.echo(f"{one['instance']} cannot tell: {one['why']}", err=True)


def _seconds(value_s: float | None) -> str:
    from headway.explain.text import seconds

    return "never" if value_s is None else seconds(value_s)

"""A small server run as a process of its own: `small_server.py [--end-with-parent PID] ... --port PORT`.

It answers what vLLM answers on `/health`, `/v1/models`, `/version` and `/metrics`, and reads the file named by
$SMALL_STATE (JSON) at every request, so that a test can change its ways while it runs:
    crash: text      say so on stderr, as Headway's launcher does, and end with code 3 instead of starting
    starts_after_s   answer nothing before
    health: status   of /health
    health_after_s   until it is answered
    models: text     in place of the list of models
    steps, running   of its engine: those it has taken, the requests it has
    metrics: text    in place of what it counts
    paused: path     that says that its engine is paused (`is_paused`, `is_sleeping`)
    slow_s           until `/slow` is answered
    token_s          between two tokens of a completion
A completion is a stream of `max_tokens` tokens. What else is posted is appended to a file beside that one, which ends
in `.posts`.
"""

from __future__ import annotations

import http.server
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from headway.engine.servers.launcher import heed_parent

MODELS = '{"object": "list", "data": [{"id": "small", "max_model_len": 4096}]}'


def state(file: Path) -> dict[str, Any]:
    """The behaviour that the test wants now."""
    known: dict[str, Any] = json.loads(file.read_text())
    return known


def counted(steps: int, running: int) -> str:
    """The metrics of an engine."""
    return f'headway_steps_total{{engine="0"}} {steps:.1f}\nvllm:num_requests_running{{engine="0"}} {running:.1f}\n'


class Handler(http.server.BaseHTTPRequestHandler):
    """One answer a connection."""

    state_file: Path

    def do_GET(self) -> None:
        wanted = state(self.state_file)
        if self.path == "/slow":
            time.sleep(wanted["slow_s"])
        if self.path == "/health":
            time.sleep(wanted.get("health_after_s", 0))
        status, body = {
            "/health": (wanted.get("health", 200), ""),
            "/v1/models": (200, wanted.get("models", MODELS)),
            "/slow": (200, "at last"),
            "/version": (200, '{"version": "0.32.0"}'),
            "/metrics": (
                200,
                wanted.get(
                    "metrics", "# a comment\n" + counted(wanted.get("steps", 3), wanted.get("running", 0))
                ),
            ),
        }.get(self.path, (404, ""))
        flag = wanted.get("paused")
        if flag is not None and self.path == f"/{flag}":
            status, body = 200, json.dumps({flag: True})
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        if self.path == "/v1/completions":
            self._stream(json.loads(body)["max_tokens"])
            return
        with self.state_file.with_suffix(".posts").open("a") as posts:
            posts.write(f"{self.path} {body}\n")
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _stream(self, tokens: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for number in range(tokens):
            finish = '"length"' if number == tokens - 1 else "null"
            choice = f'{{"index":0,"text":" w{number}","finish_reason":{finish},"token_ids":[{number}]}}'
            self.wfile.write(f'data: {{"id":"a","choices":[{choice}]}}\n\n'.encode())
            time.sleep(state(self.state_file).get("token_s", 0))
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *arguments: object) -> None:
        """Log nothing."""


def main() -> None:
    """Serve until told to end."""
    heed_parent()
    port = sys.argv[sys.argv.index("--port") + 1]
    Handler.state_file = Path(os.environ["SMALL_STATE"])
    wanted = state(Handler.state_file)
    if "crash" in wanted:
        print(f"error: {wanted['crash']}", file=sys.stderr, flush=True)
        sys.exit(3)
    time.sleep(wanted.get("starts_after_s", 0))
    http.server.ThreadingHTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()


if __name__ == "__main__":
    main()

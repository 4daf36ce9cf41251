"""A real Chromium without a window, driven over its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

PATIENCE_S = 60.0
"""For what must happen at last, on a busy machine."""

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
)


class Tab:
    """One page of the browser. `complaints` are exceptions, and whatever else a console shows in red."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._asked = 0
        self.complaints: list[str] = []

    async def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask for something, and wait for its answer; what happens meanwhile is noted."""
        self._asked += 1
        await self._socket.send_json({"id": self._asked, "method": method, "params": parameters})
        while True:
            message = await asyncio.wait_for(self._socket.receive_json(), PATIENCE_S)
            if message.get("id") == self._asked:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result
            self._note(message)

    def _note(self, event: dict[str, Any]) -> None:
        if event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(event["params"]["exceptionDetails"]))
        elif event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
            self.complaints.append(event["params"]["entry"]["text"])

    async def open(self, url: str) -> None:
        """Load a page."""
        await self.send("Page.navigate", url=url)
        await self.until("document.readyState === 'complete'")

    async def value(self, expression: str) -> Any:
        """The value of an expression in the page."""
        answer = await self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def until(self, expression: str) -> None:
        """Wait until an expression is true."""
        async with asyncio.timeout(PATIENCE_S):
            while not await self.value(f"Boolean({expression})"):
                await asyncio.sleep(0.05)

    async def text(self, selector: str) -> str:
        """What is read at an element, in one line."""
        shown = await self.value(f"document.querySelector({selector!r}).innerText")
        return " ".join(str(shown).split())

    async def press(self, key: str) -> None:
        """Press a key once: a character, or Tab or Enter."""
        code = {"Tab": 9, "Enter": 13}.get(key, ord(key[0].upper()))
        named = {"key": key, "windowsVirtualKeyCode": code}
        typed = {"text": "\r" if key == "Enter" else key} if key != "Tab" else {}
        await self.send("Input.dispatchKeyEvent", type="keyDown", **named, **typed)
        await self.send("Input.dispatchKeyEvent", type="keyUp", **named)

    async def look(self, *, width: int = 1280, scheme: str = "light") -> None:
        """Take on a width and a colour scheme."""
        await self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await self.send("Emulation.setEmulatedMedia", features=features)

    async def screenshot(self, file: Path) -> None:
        """The whole page as a PNG."""
        shot = await self.send("Page.captureScreenshot", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(shot["data"]))


@asynccontextmanager
async def chromium(profile: Path) -> AsyncIterator[Tab]:
    """A browser with an empty profile there, and its first tab; skips the test where there is no Chromium."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no chromium on this machine, so the page is not looked at")
    process = await asyncio.create_subprocess_exec(
        program,
        *FLAGS,
        f"--user-data-dir={profile}",
        "about:blank",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        async with aiohttp.ClientSession() as session:
            url = await _first_page(session, profile / "DevToolsActivePort")
            async with session.ws_connect(url, max_msg_size=0) as socket:
                tab = Tab(socket)
                for domain in ("Page", "Runtime", "Log"):
                    await tab.send(f"{domain}.enable")
                yield tab
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def _first_page(session: aiohttp.ClientSession, port_file: Path) -> str:
    """The address at which the first tab takes commands, once the browser is up."""
    async with asyncio.timeout(PATIENCE_S):
        while not (port_file.exists() and port_file.read_text().strip()):
            await asyncio.sleep(0.05)
        port = port_file.read_text().split()[0]
        while True:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                pages = [page for page in await answer.json() if page["type"] == "page"]
            if pages:
                return str(pages[0]["webSocketDebuggerUrl"])
            await asyncio.sleep(0.05)

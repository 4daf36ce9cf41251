"""Server-sent events as OpenAI-compatible servers send them: one JSON text a line."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator

_FIELD = b"data:"


async def sse_data(chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    r"""The payload of each `data:` line, as soon as its line is complete, however the bytes were cut.

    Lines end in b"\n" (or b"\r\n") and in nothing else: str.splitlines also ends them at U+0085 and U+2028,
    which JSON text may hold as they are. A last line without its end was cut off and is left out.
    """
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.startswith(_FIELD):
                yield line[len(_FIELD) :].strip()

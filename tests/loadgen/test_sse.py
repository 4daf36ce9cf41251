from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from headway.loadgen.openai_stream import sse_data

# Characters at which str.splitlines ends a line, and SSE does not.
TRICKY_TEXTS = st.text(alphabet='ab\u2028\u2029\x85\x0b\x0c\x1c é😀\\"', max_size=20)


async def collect(chunks: Sequence[bytes]) -> list[bytes]:
    async def arriving() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    return [data async for data in sse_data(arriving())]


@given(
    texts=st.lists(TRICKY_TEXTS, max_size=5),
    cuts=st.sets(st.integers(0, 400)),
    end=st.sampled_from(["\n", "\r\n"]),
)
async def test_events_survive_any_text_and_any_cut(texts: list[str], cuts: set[int], end: str) -> None:
    payloads = [json.dumps({"text": text}, ensure_ascii=False).encode() for text in texts]
    stream = b"".join(b"data: " + payload + 2 * end.encode() for payload in payloads)
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    chunks = [stream[start:stop] for start, stop in pairwise(places)]
    assert await collect(chunks) == payloads


async def test_other_fields_and_comments_are_left_out() -> None:
    assert await collect([b": ping\nevent: message\nid: 3\ndata:1\n\nretry: 5\n"]) == [b"1"]


async def test_a_line_that_was_cut_off_is_left_out() -> None:
    assert await collect([b"data: 1\n\ndata: {", b'"half": tr']) == [b"1"]

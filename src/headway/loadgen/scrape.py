"""A server's own numbers, from its `/metrics`."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

import aiohttp

from headway.errors import UpstreamError
from headway.http_client import open_session, root_of

TIMEOUT_S = 30.0
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


async def scrape(url: str, prefix: str) -> dict[str, float]:
    """Sums over all labels of the Prometheus samples whose name starts with `prefix`, by name.

    The prefix may go on into the labels. Raises UpstreamError if the server does not answer with metrics.
    """
    address, lines = await _samples(url, prefix)
    sums: defaultdict[str, float] = defaultdict(float)
    for line in lines:
        labelled, _, value = line.rpartition(" ")
        sums[labelled.partition("{")[0]] += _number(address, line, value)
    return dict(sums)


async def scrape_labels(url: str, name: str) -> list[dict[str, str]]:
    """The labels of each sample of that name. Raises UpstreamError if the server does not answer with metrics."""
    _, lines = await _samples(url, f"{name}{{")
    return [dict(_LABEL.findall(line)) for line in lines]


async def _samples(url: str, prefix: str) -> tuple[str, Iterator[str]]:
    """The address of a server's metrics, and the lines there that start so."""
    address = f"{root_of(url)}/metrics"
    try:
        async with open_session(timeout_s=TIMEOUT_S) as session, session.get(address) as response:
            if response.status != 200:
                raise UpstreamError(f"{address} answered HTTP {response.status}")
            text = (await response.read()).decode()
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise UpstreamError(f"{address} does not answer ({type(error).__name__}: {error})") from None
    except UnicodeDecodeError:
        raise UpstreamError(f"{address} answered with what is no text") from None
    return address, (line for line in text.split("\n") if line.startswith(prefix))


def _number(address: str, line: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise UpstreamError(f"{address} answered with what is no sample: {line[:200]!r}") from None

"""A server's own numbers, from its `/metrics`."""

from __future__ import annotations

from collections import defaultdict

from headway.errors import UpstreamError
from headway.gateway.endpoint import api_url, open_session


async def scrape(url: str, prefix: str) -> dict[str, float]:
    """Sums over all labels of the Prometheus samples whose name starts with `prefix`, by name.

    Raises UpstreamError if the server does not answer with metrics.
    """
    address = api_url(url, "metrics").replace("/v1/metrics", "/metrics")
    async with open_session(timeout_s=30.0) as session, session.get(address) as response:
        if response.status != 200:
            raise UpstreamError(f"{address} answered HTTP {response.status}")
        text = await response.text()
    sums: defaultdict[str, float] = defaultdict(float)
    for line in text.split("\n"):
        if line.startswith(prefix):
            labelled, _, value = line.rpartition(" ")
            sums[labelled.partition("{")[0]] += float(value)
    return dict(sums)

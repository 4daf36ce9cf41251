"""One LP and one HP instance of a real engine behind a real gateway, as `headway reproduce ascendra` runs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.core.slo import Slo
from headway.experiments.ascendra_real_run import CLIENT, GATEWAY, OTHERS, serve_stream, warm_up
from headway.experiments.ascendra_real_servers import fleet
from headway.experiments.ascendra_real_stream import bursty_stream
from headway.experiments.ascendra_real_systems import ASCENDRA

pytestmark = pytest.mark.engine


def test_a_stream_is_served_by_both_pools_and_what_it_took_is_told(tmp_path: Path) -> None:
    requests = bursty_stream(10.0, 3.0, 1, Slo(ttft_s=60.0, tbt_s=10.0))
    told: list[str] = []
    with fleet([ASCENDRA], 2, tmp_path, told.append) as servers:
        assert told == ["ascendra: lp-0, hp-0 serve"]
        warm_up(servers)
        run, records = serve_stream(servers, ASCENDRA, requests)
    assert (run.summary.requests, run.summary.finished, run.summary.goodput) == (30, 30, 1.0)
    assert sorted(record.id for record in records) == sorted(request.id for request in requests)
    assert list(run.shares) == ["lp-0", "hp-0", GATEWAY, CLIENT, OTHERS]
    # A ticket brings some of them to the HP instance, hurry or not.
    assert all(run.shares[name].cores > 0 for name in ("lp-0", "hp-0", GATEWAY, CLIENT))
    assert run.shares[OTHERS].cores == 0.0
    assert set(run.served) == {"lp-0", "hp-0"}
    assert sum(run.served.values()) == 30
    assert all(share.inflation >= 1.0 for share in run.shares.values())
    assert "Traceback" not in (tmp_path / "ascendra-gateway.log").read_text()

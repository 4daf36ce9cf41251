"""The bench of what swapping is worth: its engines, and two small cells."""

from __future__ import annotations

import pytest

from bench.gain.swap_worth import CHEAPER, LINKS, STOCK, ShortEngine, asked, markdown, report, requests_of

ENGINE = ShortEngine("a100-80g", context=512, fitting=4, link=1.0)


def test_the_kv_holds_so_many_requests_of_mean_length() -> None:
    assert ENGINE.blocks == 4 * 512 // 16
    limits = ENGINE.system().limits
    assert (limits.num_blocks, limits.host_blocks) == (128, 512)
    requests = requests_of(512, 4)
    assert len(requests) == 24
    assert max(request.input_tokens + request.output_tokens for request in requests) <= 16 * ENGINE.blocks


def test_a_link_is_a_share_of_the_catalogues() -> None:
    # An A100's is 25.6 GB/s.
    slow = ShortEngine("a100-80g", 512, 4, 0.25).costs()
    assert (slow.to_host.bytes_per_s, slow.to_device.bytes_per_s) == pytest.approx((6.4e9, 6.4e9))


def test_policies_that_never_copy_are_asked_once_for_all_links() -> None:
    engines = [ShortEngine("a100-80g", 512, 4, link) for link in LINKS]
    assert len({asked(engine, STOCK) for engine in engines}) == 1
    assert len({asked(engine, CHEAPER) for engine in engines}) == len(LINKS)


def test_a_link_of_no_use_is_worth_nothing_and_a_row_tells_what_happened() -> None:
    slow, fast = (ShortEngine("a100-80g", 512, 4, link) for link in (1e-4, 8.0))
    found = report([slow, fast], jobs=1)
    by_link = {row["link"]: row for row in found["cells"]}
    assert by_link[1e-4]["swapped"] <= by_link[8.0]["swapped"]
    assert by_link[8.0]["over_its_twin"] >= by_link[1e-4]["over_its_twin"]
    assert all(row["preemptions"] > 0 for row in found["cells"])
    assert len(list(markdown(found))) == 4

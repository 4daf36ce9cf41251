"""Tiles are asked for once per process, so it is looked at in one of its own."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest
import torch

from headway.engine.vllm.plugin import ask_for_tiles

ARCH_PRCTL, GET_PERMISSIONS, TILE_DATA = 158, 0x1022, 18
"""Of Linux on x86-64."""


def may_use_tiles() -> bool:
    """Whether the kernel lets this process use them."""
    allowed = ctypes.c_uint64()
    assert ctypes.CDLL(None).syscall(ARCH_PRCTL, GET_PERMISSIONS, ctypes.byref(allowed)) == 0
    return bool(allowed.value >> TILE_DATA & 1)


@pytest.mark.skipif(not torch.cpu._is_amx_tile_supported(), reason="the processor has no tiles")
@pytest.mark.engine
def test_a_process_of_vllm_may_use_tiles_and_one_that_did_not_ask_may_not() -> None:
    looks = "from tests.engine.test_cpu_tiles import may_use_tiles; print(may_use_tiles())"
    asks = "from headway.engine import register; register(); "
    found = [
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        for code in (looks, asks + looks)
    ]
    assert found == ["False", "True"]


def test_where_there_are_none_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    monkeypatch.setattr(torch.cpu, "_init_amx", lambda: pytest.fail("asked for what is not there"))
    ask_for_tiles()

"""The demo model's KV bytes per token on this machine's CPU."""

from __future__ import annotations

from headway.engine.machine import fastest_dtype

KV_BYTES_PER_TOKEN = 4 * 2 * 256 * {"bfloat16": 2, "float32": 4}[fastest_dtype()]
"""4 layers of keys and values, 256 numbers each."""

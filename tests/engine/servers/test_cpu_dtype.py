"""The number type in which a CPU computes fastest."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.engine.machine import fastest_dtype, instruction_set, matrix_gflops


@pytest.mark.parametrize(
    ("line", "dtype", "instructions"),
    [
        ("flags\t\t: fpu sse2 fma avx f16c avx2", "float32", "avx2"),
        ("flags\t\t: fpu avx2 avx512f avx512bw avx512_vnni", "float32", "avx512f"),
        ("flags\t\t: fpu avx2 avx512f avx512_bf16 avx512_vnni", "bfloat16", "avx512_bf16"),
        ("flags\t\t: fpu avx512f amx_bf16 amx_tile", "bfloat16", "amx_bf16"),
        ("Features\t: fp asimd sve bf16 i8mm", "bfloat16", "bf16"),
        ("Features\t: fp asimd sve ebf16x i8mm", "float32", "asimd"),
        ("bugs\t\t: avx512_bf16", "float32", "unknown"),
    ],
)
def test_numbers_are_those_that_the_cpu_has_instructions_for(
    tmp_path: Path, line: str, dtype: str, instructions: str
) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text(f"processor\t: 0\nvendor_id\t: any\n{line}\n\nprocessor\t: 1\n{line}\n")
    assert fastest_dtype(info) == dtype
    assert instruction_set(info) == instructions


def test_a_system_that_does_not_tell_computes_in_float32(tmp_path: Path) -> None:
    assert fastest_dtype(tmp_path / "none") == "float32"
    assert instruction_set(tmp_path / "none") == "unknown"


def test_the_probe_says_what_a_core_multiplies() -> None:
    assert matrix_gflops() > 0.1

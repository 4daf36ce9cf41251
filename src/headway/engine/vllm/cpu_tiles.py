"""The processor's tiles, with which vLLM's attention computes."""

from __future__ import annotations


def ask_for_tiles() -> None:
    """Ask the kernel for AMX tiles where the processor has them: without, the first use of one ends the process.

    vLLM's CPU attention uses them in bfloat16 and leaves the asking to oneDNN, which does it for larger products only:
    a server whose first prompt had four tokens died of an illegal instruction. Threads and forks inherit the answer.
    """
    import torch

    if torch.cpu._is_amx_tile_supported():
        torch.cpu._init_amx()

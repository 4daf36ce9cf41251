"""Paths as users write them."""

from __future__ import annotations

import os
from pathlib import Path


def written_path(text: str) -> Path:
    """The path that `text` names, `~` and `~user` being homes; where there is no such user it is left as it is.

    `Path.expanduser` raises there, before the fault could be named.
    """
    return Path(os.path.expanduser(text))

"""Paths as users write them."""

from __future__ import annotations

import os
from pathlib import Path


def written_path(text: str) -> Path:
    """The path that `text` names, with `~` and `~user` expanded; for an unknown user the text is left as it is.

    `Path.expanduser` raises instead, before an error could name the path.
    """
    return Path(os.path.expanduser(text))

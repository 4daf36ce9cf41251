"""Records of servers before this one, which are not written over."""

from __future__ import annotations

from contextlib import suppress
from glob import escape
from itertools import count
from pathlib import Path


def put_aside(records: str | None) -> None:
    """Keep what an earlier server has recorded, as each begins its file anew: `served.jsonl` becomes `served.1.jsonl`.

    The files of data-parallel engines beside it likewise. One that cannot be moved stays: it is no reason not to serve.
    """
    if records is None:
        return
    file = Path(records)
    parallel = file.parent.glob(f"{escape(file.stem)}-dp*{escape(file.suffix)}")
    ranks = [each for each in parallel if each.stem.rpartition("-dp")[2].isdecimal()]
    for each in (file, *ranks):
        if each.is_file() and not each.is_symlink() and each.stat().st_size:
            numbered = (each.with_stem(f"{each.stem}.{number}") for number in count(1))
            with suppress(OSError):
                each.rename(next(other for other in numbered if not other.exists()))

"""The papers whose experiments can be repeated, by the name the command knows them by."""

from __future__ import annotations

from headway.errors import ConfigError
from headway.experiments.adaptivellm.study import AdaptiveLlm
from headway.experiments.ascendra.study import Ascendra
from headway.experiments.fastserve.study import FastServe
from headway.experiments.magnus.study import Magnus
from headway.experiments.paper import Paper

PAPERS: dict[str, Paper] = {
    "adaptivellm": AdaptiveLlm(),
    "fastserve": FastServe(),
    "magnus": Magnus(),
    "ascendra": Ascendra(),
}
"""Another paper is a module of its own and a row here."""

ALL = "all"


def papers(name: str) -> dict[str, Paper]:
    """The paper of that name, or every one for `all`. Raises ConfigError with the names that are accepted."""
    if name == ALL:
        return dict(PAPERS)
    if name not in PAPERS:
        raise ConfigError(f"paper is {name!r}; accepted: {', '.join([*PAPERS, ALL])}")
    return {name: PAPERS[name]}

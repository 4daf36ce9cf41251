"""The papers whose experiments can be repeated, by the name the command knows them by."""

from __future__ import annotations

from pkgutil import resolve_name

from headway.errors import ConfigError
from headway.experiments.paper import Paper

PAPERS = {
    "adaptivellm": "headway.experiments.adaptivellm.study:AdaptiveLlm",
    "fastserve": "headway.experiments.fastserve.study:FastServe",
    "magnus": "headway.experiments.magnus.study:Magnus",
    "ascendra": "headway.experiments.ascendra.study:Ascendra",
}
"""Another paper is a module of its own and a row here; it is read when asked for, as some need more than others."""

ALL = "all"


def papers(name: str) -> dict[str, Paper]:
    """The paper of that name, or every one for `all`. Raises ConfigError with the names that are accepted."""
    if name == ALL:
        return {each: _paper(each) for each in PAPERS}
    if name not in PAPERS:
        raise ConfigError(f"paper is {name!r}; accepted: {', '.join([*PAPERS, ALL])}")
    return {name: _paper(name)}


def _paper(name: str) -> Paper:
    made: Paper = resolve_name(PAPERS[name])()
    return made

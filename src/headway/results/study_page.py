"""One HTML page about a paper's experiments, which holds everything it shows."""

from __future__ import annotations

from headway.results.page import page_template
from headway.results.study import Study


def render_study(study: Study) -> str:
    """The page; strings are escaped, and it forbids scripts and outside resources. The same study, the same bytes."""
    return page_template("study.html.j2").render(study=study)

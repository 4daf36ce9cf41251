from __future__ import annotations

from headway.results.svg import settings_svg
from tests.results.page import Page

CURVES = {"ours": [(16.0, 1.1), (64.0, 1.3), (256.0, None)], "theirs": [(16.0, 0.9), (256.0, 1.0)]}


def drawn(**more: object) -> Page:
    return Page(settings_svg("Gain", CURVES, x_label="limit", y_label="times", **more))  # type: ignore[arg-type]


def test_the_axis_is_labelled_at_the_settings_themselves() -> None:
    text = drawn().text.split()
    for label in ("16", "64", "256", "limit", "times", "ours", "theirs"):
        assert label in text
    assert "32" not in text


def test_a_published_point_stands_beside_its_curve_in_the_legend() -> None:
    assert "ours (paper)" in drawn(published={"ours": (64.0, 1.38)}).text
    assert "theirs (paper)" not in drawn(published={"ours": (64.0, 1.38)}).text


def test_settings_that_do_not_double_stand_at_their_own_distances() -> None:
    assert "64" in drawn(doubling=False).text.split()
    assert drawn(doubling=False).source != drawn().source


def test_the_same_bytes_each_time_and_a_level_if_there_is_one() -> None:
    plain = drawn().source
    assert plain == drawn().source
    assert plain != drawn(level=1.0).source

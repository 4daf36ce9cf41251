from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headway.predict.text_pieces import middle_cut, num_pieces, pieces, spaced_pieces


def test_words_characters_and_marks_are_counted_by_hand() -> None:
    assert pieces("It isn't, is_it 42?") == ["It", "isn", "'", "t", ",", "is_it", "42", "?"]
    assert pieces("猫坐在 mat上。") == ["猫", "坐", "在", "mat", "上", "。"]
    assert num_pieces(" \n\t") == num_pieces("") == 0


@given(st.text())
def test_spaced_pieces_are_the_whole_text(text: str) -> None:
    assert "".join(spaced_pieces(text, len(text))) == text


@given(st.text(), st.integers(0, 20))
def test_spaced_pieces_are_the_pieces(text: str, most: int) -> None:
    assert [piece.strip() for piece in spaced_pieces(text, most) if piece.strip()] == pieces(text)[:most]


@given(st.text(max_size=50), st.integers(1, 10))
def test_a_cut_text_keeps_both_ends(text: str, half: int) -> None:
    cut = middle_cut(text, 2 * half)
    assert len(cut) == min(len(text), 2 * half)
    assert (cut[:half], cut[-half:]) == (text[:half], text[-half:])

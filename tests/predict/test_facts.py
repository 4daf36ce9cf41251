from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headway.predict.lengths.facts import SharedPrefix, middle_cut, num_pieces, pieces, spaced_pieces


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


PROMPTS = st.lists(st.lists(st.integers(0, 2), max_size=6).map(tuple), max_size=30)
"""Pieces, as numbers."""
TEMPLATE = "Translate the following sentence into Chinese: "


def text_of(prompt: tuple[int, ...]) -> str:
    """A prompt of these pieces."""
    return "".join(f" {piece}" for piece in prompt)


def test_a_template_is_told_from_what_is_filled_in() -> None:
    prefix = SharedPrefix(least_prompts=3)
    found = [prefix.split(TEMPLATE + word) for word in ("cats sleep", "dogs run", "it rains", "we sing")]
    assert found[:2] == [("", TEMPLATE + "cats sleep"), ("", TEMPLATE + "dogs run")]
    # Cut behind the colon: the space before a word belongs to it.
    assert found[2:] == [(TEMPLATE.rstrip(), " it rains"), (TEMPLATE.rstrip(), " we sing")]


def test_chinese_has_no_spaces_and_is_split_too() -> None:
    prefix = SharedPrefix(least_prompts=2)
    prefix.split("请翻译下面这句话：猫坐着")
    assert prefix.split("请翻译下面这句话：我在唱歌") == ("请翻译下面这句话：", "我在唱歌")


def test_a_popular_prompt_is_not_an_instruction() -> None:
    prefix = SharedPrefix(least_prompts=2)
    assert [prefix.split("What is the capital of France?") for _ in range(20)][-1][0] == ""


def test_a_few_common_words_are_chance() -> None:
    prefix = SharedPrefix(least_prompts=2, least_pieces=4)
    prefix.split("What is the time?")
    assert prefix.split("What is the weather like?") == ("", "What is the weather like?")


def test_two_instructions_live_beside_each_other() -> None:
    prefix = SharedPrefix(least_prompts=2)
    first, second = "You are a helpful translator.", "You are a helpful critic of poems."
    for number in range(4):
        answers = [prefix.split(f"{first} {number}"), prefix.split(f"{second} {number}")]
    assert answers == [(first, " 3"), (second, " 3")]


def test_an_instruction_nobody_uses_any_more_is_forgotten() -> None:
    prefix = SharedPrefix(window=4, least_prompts=2)
    for number in range(4):
        prefix.split(f"{TEMPLATE}{number}")
    for number in range(4):
        prefix.split(f"{number} is something else entirely")
    assert prefix.split(f"{TEMPLATE}9")[0] == ""


def test_a_long_instruction_is_cut_where_reading_ends() -> None:
    prefix = SharedPrefix(least_prompts=2, max_pieces=10)
    system = "word " * 50
    prefix.split(system + "one")
    assert prefix.split(system + "two")[0] == ("word " * 10).rstrip()


@given(st.lists(st.text(max_size=30), max_size=20))
def test_both_parts_are_always_the_whole_prompt(texts: list[str]) -> None:
    prefix = SharedPrefix(window=5, least_prompts=2, least_pieces=1, max_pieces=4)
    for text in texts:
        assert "".join(prefix.split(text)) == text


@given(PROMPTS)
def test_it_finds_what_counting_every_prompt_finds(prompts: list[tuple[int, ...]]) -> None:
    window, least, most = 5, 2, 4
    prefix = SharedPrefix(window=window, least_prompts=least, least_pieces=1, max_pieces=most)
    recent: list[tuple[int, ...]] = []
    for prompt in prompts:
        recent = [*(other for other in recent if other != prompt), prompt][-window:]
        shared = 0
        for length in range(1, min(len(prompt), most) + 1):
            if sum(other[:length] == prompt[:length] for other in recent) >= least:
                shared = length
        assert prefix.split(text_of(prompt)) == (text_of(prompt[:shared]), text_of(prompt[shared:]))


@given(PROMPTS)
def test_memory_is_bounded(prompts: list[tuple[int, ...]]) -> None:
    prefix = SharedPrefix(window=3, max_pieces=4)
    for prompt in prompts:
        prefix.split(text_of(prompt))
    assert len(prefix._prompts) <= 3
    assert sum(prefix._sharing.values()) == sum(map(len, prefix._prompts.values())) <= 12
    assert all(prefix._sharing.values())


def test_words_that_many_inputs_begin_with_are_no_part_of_the_instruction() -> None:
    prefix = SharedPrefix(least_prompts=2)
    instruction = "Translate the Java code into C#."
    found = [prefix.split(f"{instruction}\n\npublic void {name}()") for name in ("run", "stop", "close")]
    assert found[1:] == [(instruction, "\n\npublic void stop()"), (instruction, "\n\npublic void close()")]
    # Without the end of a sentence or a line before them they cannot be told from it.
    for name in ("cats", "dogs"):
        split = prefix.split(f"Write a short poem about {name}")
    assert split == ("Write a short poem about", " dogs")

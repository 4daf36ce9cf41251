"""The eight applications of the demo model: instructions, inputs, and the rules of their answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from types import MappingProxyType


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NAMES = _words(
    "Anna Ben Carl Dora Emil Fay Gus Hanna Ivan Jane Karl Lena Max Nora Otto Paul Rosa Sam Tina Ursula "
    "Victor Wanda Yusuf Zoe"
)
VERBS = _words("paints finds carries breaks cleans draws sells counts hides brings loves mends")
ADJECTIVES = _words(
    "red green blue old new small round heavy soft bright dark cold warm quiet loud dry wet sharp"
)
NOUNS = _words(
    "lamps boats chairs doors apples stones rivers gardens letters bottles candles baskets mirrors pencils "
    "hammers ladders tables windows kettles buttons carpets drums engines feathers flags gloves hats islands "
    "jackets keys knives leaves maps needles oars pillows plates ropes rings saddles shells spoons stamps "
    "tents towels trees trunks umbrellas violins wagons wheels whistles anchors barrels bells bridges brooms "
    "cables cards clocks"
)
PLACES = _words("near behind under above inside beside")

PLAINER = {
    "purchases": "buys",
    "demonstrates": "shows",
    "commences": "starts",
    "conceals": "hides",
    "discards": "throws out",
    "investigates": "looks into",
    "enormous": "very big",
    "tiny": "small",
    "ancient": "old",
    "azure": "blue",
    "frigid": "very cold",
    "silent": "quiet",
}
"""What `rewrite` puts for a fancy word; the first six are verbs, the others adjectives."""
FANCY_VERBS, FANCY_ADJECTIVES = tuple(PLAINER)[:6], tuple(PLAINER)[6:]

LONG_FORMS = {
    "asap": "as soon as possible",
    "fyi": "for your information",
    "btw": "by the way",
    "eta": "estimated time of arrival",
    "tbd": "to be decided",
    "mtg": "meeting",
    "dept": "department",
    "approx": "approximately",
    "pm": "after noon",
    "w/o": "without",
    "eod": "end of the day",
    "imo": "in my opinion",
}
"""What `expand` spells out, besides numbers."""

RUDE = _words("blasted rotten wretched stupid lousy filthy ghastly horrid")
"""The words that `detox` drops."""

SYLLABLES = _words("ta ke mi lo su ra ne pi vo gu")


def misspelt(word: str) -> str:
    """A word with its second and third letters swapped, for `correct` to notice."""
    return word[0] + word[2] + word[1] + word[3:]


MISSPELT = {misspelt(noun): noun for noun in NOUNS if misspelt(noun) not in NOUNS and noun[1] != noun[2]}


def kala(number: int) -> str:
    """A word of the made-up language Kala: three syllables, the digits of a scattered three-digit number."""
    return " ".join(SYLLABLES[int(digit)] for digit in f"{number * 389 % 1000:03d}")


KALA = {noun: kala(number) for number, noun in enumerate(NOUNS, start=1)}
"""Kala for every noun; 389 has no factor in common with 1000, so no two words share their syllables."""
PLAIN = {word: noun for noun, word in KALA.items()}

_ONES = _words(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen"
)
_TENS = _words("twenty thirty forty fifty sixty seventy eighty ninety")


def spelled(number: int) -> str:
    """A number from 0 to 99 in words."""
    if number < 20:
        return _ONES[number]
    tens, ones = divmod(number, 10)
    return _TENS[tens - 2] + (f" {_ONES[ones]}" if ones else "")


@dataclass(frozen=True, slots=True)
class DemoApp:
    """One application: its instruction, a function that makes inputs, and one that answers them.

    Parts are sentences, words or lines; there are `mean_parts` on average and at most `most_parts`. `answer` depends on
    the input alone and has linear cost.
    """

    instruction: str
    make_input: Callable[[Random, int], str]
    answer: Callable[[str], str]
    mean_parts: float
    most_parts: int


# ---- sentences: rewrite, detox ---------------------------------------------------------


def _sentences(decorate: Callable[[Random, list[str]], list[str]], rng: Random, count: int) -> str:
    """`count` sentences, with unique names and nouns: the copied part then determines what comes next."""
    names, nouns = rng.sample(NAMES, count), rng.sample(NOUNS, 2 * count)
    sentences = []
    for index, name in enumerate(names):
        words = [rng.choice(VERBS), rng.choice(ADJECTIVES), nouns[2 * index]]
        if rng.random() < 0.5:
            words += [rng.choice(PLACES), nouns[2 * index + 1]]
        sentences.append(" ".join([name, *decorate(rng, words)]) + ".")
    return " ".join(sentences)


def _fancy(rng: Random, words: list[str]) -> list[str]:
    if rng.random() < 0.5:
        words[0] = rng.choice(FANCY_VERBS)
    if rng.random() < 0.5:
        words[1] = rng.choice(FANCY_ADJECTIVES)
    return words


def _rewritten(text: str) -> str:
    """Every fancy word replaced by its plainer one."""
    return " ".join(PLAINER.get(word, word) for word in text.split(" "))


def _rude(rng: Random, words: list[str]) -> list[str]:
    return [said for word in words for said in (*_rude_words(rng), word)]


def _rude_words(rng: Random) -> list[str]:
    return rng.sample(RUDE, rng.choice((1, 1, 2))) if rng.random() < 0.4 else []


def _cleaned(text: str) -> str:
    """The text without its rude words."""
    return " ".join(word for word in text.split(" ") if word not in RUDE)


# ---- a note: expand ----------------------------------------------------------------------------------

_NOTED = (*LONG_FORMS, *NOUNS[:20], *map(str, (*range(2, 20), *range(20, 100, 10))))
"""The words of a note. Its numbers are those that are one word."""


def _note(rng: Random, words: int) -> str:
    return " ".join(rng.sample(_NOTED, words))


def _spelled_out(text: str) -> str:
    """Every short form and every number in full words."""
    return " ".join(
        spelled(int(word)) if word.isdigit() else LONG_FORMS.get(word, word) for word in text.split(" ")
    )


# ---- numbered lines: list, sum, correct, translate, comment ------------------------------------------


def _numbered(lines: Iterable[str]) -> str:
    return "\n".join(f"{number} {line}" for number, line in enumerate(lines, start=1))


def _with_count(lines: Sequence[str]) -> str:
    """Numbered lines, with a first line that states their number."""
    return f"{len(lines)} lines:\n{_numbered(lines)}"


def _line_by_line(answer: Callable[[str], str], text: str) -> str:
    """The answer to every line of `_with_count`, under its number."""
    return _numbered(answer(line.partition(" ")[2]) for line in text.split("\n")[1:])


def _wanted(rng: Random, lines: int) -> str:
    nouns = rng.sample(NOUNS, lines)
    return _with_count([noun if rng.random() < 0.5 else f"{rng.choice(ADJECTIVES)} {noun}" for noun in nouns])


def _to_do(things: str) -> str:
    return f"find the {things} and bring them back to us"


def _report(rng: Random, lines: int) -> str:
    return _with_count(_sentences(_as_is, rng, lines).split(". "))


def _as_is(_: Random, words: list[str]) -> list[str]:
    return words


def _first_word(line: str) -> str:
    return line.split(" ")[0]


def _spelling(rng: Random, lines: int) -> str:
    wrong = {noun: mistake for mistake, noun in MISSPELT.items()}
    nouns = rng.sample(NOUNS, lines)
    return _with_count([wrong.get(noun, noun) if rng.random() < 0.5 else noun for noun in nouns])


def _corrected(word: str) -> str:
    """The right spelling, or that it is right."""
    return MISSPELT.get(word, "is right")


def _foreign(rng: Random, lines: int) -> str:
    nouns = rng.sample(NOUNS, lines)
    return _with_count(nouns if rng.random() < 0.5 else [KALA[noun] for noun in nouns])


def _translated(word: str) -> str:
    """A plain word in Kala, which is three syllables; a Kala word in plain."""
    return KALA.get(word) or PLAIN[word]


_COMMENTS = {
    "{a} = {b} + 1": "let {a} be one more than {b}",
    "{a} += 1": "count {a} up",
    "return {a}": "give back {a}",
    "del {a}": "forget {a}",
    "assert {a}": "make sure of {a}",
    "if {a} > {b}:": "only when {a} is more than {b}",
    "while {a} < {b}:": "again and again as long as {a} is less than {b}",
}
"""A line of code -> its comment."""


def _code(rng: Random, lines: int) -> str:
    """Lines of code, each with other variables."""
    names = rng.sample(NOUNS, 2 * lines)
    pairs = zip(names[::2], names[1::2], strict=True)
    return _with_count([rng.choice(tuple(_COMMENTS)).format(a=a, b=b) for a, b in pairs])


def _comment(line: str) -> str:
    for code, comment in _COMMENTS.items():
        pattern = re.sub(r"\\{(\w)\\}", r"(?P<\1>\\w+)", re.escape(code))
        if match := re.fullmatch(pattern, line):
            return comment.format(**match.groupdict())
    raise ValueError(f"no comment is known for {line!r}")


# ---- the eight ---------------------------------------------------------------------------------------

APPS: Mapping[str, DemoApp] = MappingProxyType(
    {
        "rewrite": DemoApp(
            "Rewrite the text in plain words.", partial(_sentences, _fancy), _rewritten, 7.0, 24
        ),
        "expand": DemoApp("Spell out every short form and number.", _note, _spelled_out, 14.0, 40),
        "list": DemoApp(
            "List what is to be done about each line.", _wanted, partial(_line_by_line, _to_do), 5.0, 12
        ),
        "sum": DemoApp(
            "Sum up: give the first word of each line.", _report, partial(_line_by_line, _first_word), 7.0, 24
        ),
        "correct": DemoApp(
            "Correct the spelling of each line.", _spelling, partial(_line_by_line, _corrected), 14.0, 50
        ),
        "translate": DemoApp(
            "Translate plain lines into Kala, and Kala into plain words.",
            _foreign,
            partial(_line_by_line, _translated),
            14.0,
            50,
        ),
        "comment": DemoApp(
            "Comment every line of the code.", _code, partial(_line_by_line, _comment), 7.0, 24
        ),
        "detox": DemoApp("Leave out all rude words.", partial(_sentences, _rude), _cleaned, 7.0, 24),
    }
)
"""Applications by name. Answers grow with the input in different ways: `sum` to a third of it, `list` to three
times.
"""

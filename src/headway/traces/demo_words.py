"""The words that the demo tasks are made of, and the tables by which their answers follow."""

from __future__ import annotations


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
"""What `expand` spells out, beside the numbers."""

RUDE = _words("blasted rotten wretched stupid lousy filthy ghastly horrid")
"""The words that `detox` drops."""

SYLLABLES = _words("ta ke mi lo su ra ne pi vo gu")


def misspelt(word: str) -> str:
    """A word with its second and third letters changed about, which `correct` is to notice."""
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

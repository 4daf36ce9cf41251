"""What a server knows about a request when it predicts the answer's length."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from headway.core.length_estimate import LengthEstimate


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFacts:
    """The facts about an arriving request; texts are empty if it has none.

    `instruction` is what many requests share (a system prompt, a common prefix), `user_input` the rest.
    """

    num_prompt_tokens: int
    max_output_tokens: int
    instruction: str = ""
    user_input: str = ""
    tenant: str = ""


class LengthPredictor(Protocol):
    """Predicts the answer's length of an arriving request, and learns from finished answers."""

    def predict(self, facts: RequestFacts) -> LengthEstimate | None:
        """The predicted length in output tokens; None while too little is known."""
        ...

    def observe(self, facts: RequestFacts, output_tokens: int) -> None:
        """Learn from an answer that ended by itself or at its limit; other answers teach nothing."""
        ...


CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_PLAIN = rf"[{CJK}]|[^\W{CJK}]+|[^\w\s]"
_PIECE = re.compile(_PLAIN)
_SPACED = re.compile(rf"\s*(?:{_PLAIN})|\s+")


_SENTENCE_ENDS = frozenset(".:!?>。：！？")


def pieces(text: str) -> list[str]:
    """The words, CJK characters and punctuation marks of a text, in order. O(length)."""
    return _PIECE.findall(text)


def spaced_pieces(text: str, most: int) -> list[str]:
    """The first `most` pieces, each with the space before it, so that all of them join to the whole text."""
    return [match[0] for match in islice(_SPACED.finditer(text), most)]


def num_pieces(text: str) -> int:
    """A token count without a tokenizer: one for each word, CJK character or punctuation mark."""
    return len(pieces(text))


def middle_cut(text: str, max_chars: int) -> str:
    """The text, or its first and last `max_chars` / 2 characters, since the question stands at one end."""
    if len(text) <= max_chars:
        return text
    half = max_chars // 2
    return text[:half] + text[len(text) - half :]


class SharedPrefix:
    """Finds the longest prefix that at least `least_prompts` of the last `window` different prompts share.

    A repeated prompt counts once, or a popular one would be taken for an instruction as a whole. A prefix of fewer than
    `least_pieces` pieces is chance ("What is the"), not an instruction. Only the first `max_pieces` pieces are
    examined, so a longer instruction is cut there. The instruction ends at a sentence or line end, which separates it
    from words with which many inputs begin. The history of a conversation, repeated with every turn, belongs to the
    instruction.

    O(max_pieces) a prompt. Memory: at most window x max_pieces hashes.
    """

    def __init__(
        self, *, window: int = 256, least_prompts: int = 8, least_pieces: int = 4, max_pieces: int = 512
    ) -> None:
        self._window = window
        self._least_prompts = least_prompts
        self._least_pieces = least_pieces
        self._max_pieces = max_pieces
        self._prompts: dict[int, tuple[int, ...]] = {}
        self._sharing: Counter[int] = Counter()

    def split(self, text: str) -> tuple[str, str]:
        """Split a prompt into instruction and user input; the prompt counts from now on.

        The instruction is empty while too few prompts share anything.
        """
        found = spaced_pieces(text, self._max_pieces)
        shared = self._whole_sentences(found, self._shared(found, hash(text)))
        cut = sum(map(len, found[:shared]))
        return text[:cut], text[cut:]

    def facts(
        self, prompt: str, *, num_prompt_tokens: int, max_output_tokens: int, tenant: str = ""
    ) -> RequestFacts:
        """The facts of a request with that prompt (empty if it has no text); call once for each request."""
        instruction, user_input = self.split(prompt)
        return RequestFacts(
            num_prompt_tokens=num_prompt_tokens,
            max_output_tokens=max_output_tokens,
            instruction=instruction,
            user_input=user_input,
            tenant=tenant,
        )

    def _shared(self, prompt: Iterable[str], identity: int) -> int:
        """Number of leading pieces that enough prompts share, including this one."""
        beginnings = self._prompts.pop(identity, None)
        if beginnings is None:
            beginnings = _beginnings(prompt)
            self._sharing.update(beginnings)
            if len(self._prompts) >= self._window:
                self._forget(next(iter(self._prompts)))
        self._prompts[identity] = beginnings
        # A longer prefix is shared by at most as many prompts as a shorter one.
        shared = 0
        for beginning in beginnings:
            if self._sharing[beginning] < self._least_prompts:
                break
            shared += 1
        return shared if shared >= self._least_pieces else 0

    def _whole_sentences(self, prompt: Sequence[str], shared: int) -> int:
        """The shared pieces up to the last end of a sentence or line; all of them if there is none."""
        for end in range(shared, self._least_pieces - 1, -1):
            if prompt[end - 1].lstrip() in _SENTENCE_ENDS or "\n" in "".join(prompt[end : end + 1]):
                return end
        return shared

    def _forget(self, identity: int) -> None:
        for beginning in self._prompts.pop(identity):
            self._sharing[beginning] -= 1
            if not self._sharing[beginning]:
                del self._sharing[beginning]


def _beginnings(prompt: Iterable[str]) -> tuple[int, ...]:
    """A hash of the first piece, of the first two, and so on."""
    found: list[int] = []
    last = 0
    for piece in prompt:
        last = hash((last, piece))
        found.append(last)
    return tuple(found)

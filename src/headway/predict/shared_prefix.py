"""Which part of a prompt is the instruction: the beginning that many recent prompts share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from headway.predict.length import RequestFacts
from headway.predict.text_pieces import spaced_pieces


class SharedPrefix:
    """Finds the longest beginning that at least `least_prompts` of the last `window` different prompts share.

    A prompt counts once however often it came, or one that is popular would be taken for an instruction as a
    whole. A beginning of fewer than `least_pieces` pieces is chance ("What is the"), not an instruction. Only the
    first `max_pieces` pieces are looked at, so a longer instruction is cut there. A word that many inputs begin with
    goes with the instruction, and so does the past of a conversation that comes back with every turn.

    O(max_pieces) a prompt. Memory: window x max_pieces hashes at most.
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
        """Instruction and user input of a prompt, together all of it; the prompt counts from now on.

        The instruction is empty while too few prompts share anything.
        """
        found = spaced_pieces(text, self._max_pieces)
        cut = sum(map(len, found[: self._shared(found, hash(text))]))
        return text[:cut], text[cut:]

    def facts(
        self, prompt: str, *, num_prompt_tokens: int, max_output_tokens: int, tenant: str = ""
    ) -> RequestFacts:
        """What a server knows of a request with that prompt (empty if it has no text), to be asked once for each."""
        instruction, user_input = self.split(prompt)
        return RequestFacts(
            num_prompt_tokens=num_prompt_tokens,
            max_output_tokens=max_output_tokens,
            instruction=instruction,
            user_input=user_input,
            tenant=tenant,
        )

    def _shared(self, prompt: Iterable[str], identity: int) -> int:
        """Leading pieces that enough prompts share, this one among them."""
        beginnings = self._prompts.pop(identity, None)
        if beginnings is None:
            beginnings = _beginnings(prompt)
            self._sharing.update(beginnings)
            if len(self._prompts) >= self._window:
                self._forget(next(iter(self._prompts)))
        self._prompts[identity] = beginnings
        # Every longer beginning is shared by no more prompts than a shorter one.
        shared = 0
        for beginning in beginnings:
            if self._sharing[beginning] < self._least_prompts:
                break
            shared += 1
        return shared if shared >= self._least_pieces else 0

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

"""What batches take on a server, measured before there is anything to learn from."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import aiohttp

from headway.core.job import Job
from headway.core.record import Outcome
from headway.errors import UpstreamError
from headway.http_client import api_url
from headway.loadgen.dispatcher import BatchStreams
from headway.loadgen.instance import KvMemory, ServedInstance
from headway.loadgen.openai_stream import Reply, stream_completion
from headway.predict.steps.batch_time import BatchRow, BatchTimeModel
from headway.traces import TraceRequest

_MANY = 8
_SHORTER = 8
"""Short prompts are so much shorter than the longest of the trace."""
_FEW_TOKENS, _MORE_TOKENS = 4, 36
_REPEATS = 2
"""Each batch is served so often and the quickest counts: the first of a shape may be slower."""


class BatchLengths(NamedTuple):
    """Tokens of every seat of a batch."""

    prompt: int
    output: int


class ClockedTimes:
    """A model of batch times that learns whenever its period is over by the clock."""

    def __init__(self, model: BatchTimeModel, clock: Callable[[], float]) -> None:
        self._model = model
        self._clock = clock

    def predict(self, size: int, prompt_tokens: int, output_tokens: int) -> float:
        """Seconds, as the model says."""
        return self._model.predict(size, prompt_tokens, output_tokens)

    def observe(self, size: int, prompt_tokens: int, output_tokens: int, seconds: float) -> None:
        """A batch was served."""
        self._model.observe(size, prompt_tokens, output_tokens, seconds)
        now_s = self._clock()
        if self._model.due(now_s):
            self._model.refit(now_s)


async def measured_times(
    session: aiohttp.ClientSession, instance: ServedInstance, longest: BatchLengths, memory: KvMemory
) -> BatchTimeModel:
    """A model that starts from a few batches served now: of one and of several, of short and long prompts.

    Each is served with 4 and with 36 output tokens, and longer answers are taken to go on at that pace. Several
    are 8, or as many as the memory holds. Raises UpstreamError if the server does not serve them.
    """
    context = instance.dialect.max_model_len
    long = longest.prompt if context is None else max(1, min(longest.prompt, context - _MORE_TOKENS))
    fitting = memory.capacity_tokens // (long + _MORE_TOKENS + memory.block_tokens)
    powers = (2**power for power in range(longest.output.bit_length()))
    outputs = sorted({longest.output, *(length for length in powers if length < longest.output)})
    rows: list[BatchRow] = []
    for size in sorted({1, max(1, min(_MANY, fitting))}):
        for prompt in sorted({max(1, long // _SHORTER), long}):
            few_s = await _quickest_s(session, instance, size, BatchLengths(prompt, _FEW_TOKENS))
            more_s = await _quickest_s(session, instance, size, BatchLengths(prompt, _MORE_TOKENS))
            rows += [(size, prompt, output, continued_s(few_s, more_s, output)) for output in outputs]
    return BatchTimeModel(rows)


def continued_s(few_s: float, more_s: float, output: int) -> float:
    """Seconds of a longer answer, on the line through the two that were measured; never less than the shorter."""
    pace_s = max(0.0, more_s - few_s) / (_MORE_TOKENS - _FEW_TOKENS)
    return few_s + pace_s * max(0, output - _FEW_TOKENS)


async def _quickest_s(
    session: aiohttp.ClientSession, instance: ServedInstance, size: int, lengths: BatchLengths
) -> float:
    return min([await _seconds(session, instance, size, lengths, repeat) for repeat in range(_REPEATS)])


async def _seconds(
    session: aiohttp.ClientSession, instance: ServedInstance, size: int, lengths: BatchLengths, repeat: int
) -> float:
    """Seconds that a made-up batch takes."""
    url = api_url(instance.url, "completions")
    streams, replies = {}, {}
    # A made-up prompt has no answer of the model's own: its length is forced, whatever the replay does.
    dialect = replace(instance.dialect, own_stops=False)
    for member in range(size):
        name = f"profile-{size}-{lengths.prompt}-{lengths.output}-{repeat}-{member}"
        job = Job(id=name, arrival_s=0.0, num_prompt_tokens=lengths.prompt, max_output_tokens=lengths.output)
        body = dialect.body(TraceRequest(name, 0.0, *lengths))
        replies[job] = Reply()
        streams[job] = stream_completion(session, url, body, replies[job], time.perf_counter)
    began_s = time.perf_counter()
    await BatchStreams(replies, lambda job: None, lambda: instance.answers(session)).follow(streams)
    seconds = time.perf_counter() - began_s
    for reply in replies.values():
        outcome, error = reply.outcome()
        if outcome is not Outcome.FINISHED:
            raise UpstreamError(f"{instance.url} does not serve a batch of {size}: {error or outcome}")
    return seconds

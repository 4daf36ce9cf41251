"""What steps take beyond a cost sheet, from nothing but when answers began and ended under stock vLLM.

An answer of n tokens lives through n - 1 steps after its first token, whoever else is there: stock pauses nobody. The
steps with prompts among them are those in which others have their first token, since its moment is that of the step's
end; the others are decodes alone. So what an answer takes beyond the sheet's sum for its steps is the sum of what each
kind of step takes beyond it, and hundreds of answers tell them apart.

It is a rough estimate: a prompt that takes several steps is seen in the last alone. On simulated streams of known cost
it finds 2 ms for a large step where there are none, 4.4 to 6.7 where there are 4, the more the nearer stock is to
saturation, and 5.7 where there are 6 (`tests/lab/test_gpu_real.py` has the first two at moderate load).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np

from bench.serving_engine import Served
from headway.core.batch_shape import BatchShape
from headway.policies.batching.step_shapes import decode_shape, together
from headway.sim.simulation import System
from headway.traces import TraceRequest

LEAST_TOKENS = 60
"""Of an answer that counts: what happens while decodes alone run is known only in the mean over its life."""
EVERY_S = 0.05
"""Between two looks at who decodes."""
COLUMNS = (
    "ms_beyond_graphs",
    "ms_with_prompts_within_graphs",
    "ms_per_gb_read_beside_prompts",
    "ms_without_prompts",
    "ms_per_gb_read_without",
)

Stream = tuple[Sequence[TraceRequest], Sequence[Served]]


def beyond_sheet(system: System, streams: Iterable[Stream]) -> dict[str, float]:
    """What steps with prompts (of more tokens than CUDA graphs hold, and of fewer) and those without take beyond the
    sheet, constants and a slope by the KV that decodes read, in milliseconds; `rms_before` and `rms_after` are of the
    answers' relative errors.

    O(answers x steps with prompts).
    """
    rows = [row for stream in streams for row in _rows(system, *stream)]
    taken_s, told_s, *features = np.array(rows).T
    design = np.stack(features, axis=1) / taken_s[:, None]
    left = (taken_s - told_s) / taken_s
    found, *_ = np.linalg.lstsq(design, left, rcond=None)
    rms = [float(np.sqrt(np.mean(errors**2))) for errors in (left, left - design @ found)]
    return {
        **{name: float(value) * 1e3 for name, value in zip(COLUMNS, found, strict=True)},
        "answers": len(rows),
        "rms_before": rms[0],
        "rms_after": rms[1],
    }


def _rows(
    system: System, requests: Sequence[TraceRequest], served: Sequence[Served]
) -> list[tuple[float, ...]]:
    """Of each answer: its seconds, the sheet's, and what the coefficients stand at, in the order of COLUMNS."""
    prompts = np.array([request.input_tokens for request in requests])
    tokens = np.array([each.output_tokens for each in served])
    first_s = np.array([each.first_token_s or 0.0 for each in served])
    end_s = np.array([each.finished_s for each in served])
    gb_a_token = system.calibration.kv_bytes_per_token / 1e9

    def decodes_at(now_s: float) -> BatchShape:
        """Who decodes in the step that ends then, each as far as it is if its tokens come evenly."""
        on = (first_s < now_s) & (end_s >= now_s)
        done = (now_s - first_s[on]) / np.maximum(end_s[on] - first_s[on], 1e-9)
        context = prompts[on] + 1 + done * (tokens[on] - 1)
        return decode_shape(int(on.sum()), int(context.sum()))

    begun: dict[float, BatchShape] = defaultdict(BatchShape)
    for moment_s, prompt in zip(first_s, prompts, strict=True):
        begun[moment_s].add(int(prompt), 0)
    moments_s = sorted(begun)
    beside = [decodes_at(moment_s) for moment_s in moments_s]
    step_s, graphed_tokens = system.step.step_s, system.limits.graphed_tokens
    told = [step_s(together(decodes, begun[at])) for decodes, at in zip(beside, moments_s, strict=True)]
    beyond = [
        decodes.num_tokens + begun[at].num_tokens > graphed_tokens
        for decodes, at in zip(beside, moments_s, strict=True)
    ]
    told_by, read_by, beyond_by = (
        [0.0, *accumulate(each)]
        for each in (told, [decodes.decode_context_tokens * gb_a_token for decodes in beside], beyond)
    )
    looks_s = np.arange(0.0, end_s.max(), EVERY_S)
    looks = [decodes_at(look_s) for look_s in looks_s]
    alone_s = np.array([step_s(decodes) if decodes.num_jobs else 0.0 for decodes in looks])
    alone_gb = np.array([decodes.decode_context_tokens * gb_a_token for decodes in looks])
    found: list[tuple[float, ...]] = []
    for first, end, count in zip(first_s, end_s, tokens, strict=True):
        a, b = bisect_right(moments_s, first), bisect_right(moments_s, end)
        alone, during = (count - 1) - (b - a), (looks_s > first) & (looks_s < end)
        if count >= LEAST_TOKENS and alone >= 0 and during.any():
            sheet_s = told_by[b] - told_by[a] + alone * alone_s[during].mean()
            large = beyond_by[b] - beyond_by[a]
            read_gb = read_by[b] - read_by[a], alone * alone_gb[during].mean()
            found.append((end - first, sheet_s, large, b - a - large, read_gb[0], alone, read_gb[1]))
    return found

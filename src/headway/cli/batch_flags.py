"""Flags of a central queue of batches, shared by `headway serve` and `headway replay`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from headway.errors import ConfigError
from headway.routing.magnus import BatchSettings, find_batch_preset
from headway.setting import Setting

if TYPE_CHECKING:
    from headway.gateway.request.central_queue import CentralBatching
    from headway.predict.kept_file import FileKeeper
    from headway.predict.lengths.predictor import LengthLearner
    from headway.predict.steps.kept_batch_times import BatchTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFlags:
    """The flags as given. None of the others is accepted without `batches`."""

    batches: Annotated[
        str | None,
        Setting("Send whole batches from one queue, gathered as vs, glp, abp or magnus do.", "ROW"),
    ] = None
    kv_tokens: Annotated[
        int | None,
        Setting("With --batches: KV tokens an instance holds; default: what its metrics say.", "N"),
    ] = None
    batch_size: Annotated[
        int | None, Setting("With --batches: the row's batch size, or its largest.", "N")
    ] = None
    wma_limit: Annotated[
        int | None,
        Setting("With --batches: a batch may waste less than this (Magnus's Phi).", "TOKENS"),
    ] = None
    safety_factor: Annotated[
        float | None,
        Setting("With --batches: plan with predicted lengths times this; default 1.", "X"),
    ] = None

    def check(self) -> None:
        """Raise ConfigError for batch settings given without `batches`, and for values that are not accepted."""
        if self.batches is not None:
            self.settings()
            if find_batch_preset(self.batches).simulated:
                raise ConfigError(
                    f"batches {self.batches!r} exist in the simulator alone; accepted here: the others"
                )
            return
        for each in fields(self):
            if getattr(self, each.name) is not None:
                raise ConfigError(f"--{each.name.replace('_', '-')} is accepted with --batches alone")

    def settings(self) -> BatchSettings:
        """The queue's settings. Raises ConfigError for a value out of range."""
        given = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "batches"}
        given["capacity_tokens"] = given.pop("kv_tokens")
        return BatchSettings(**{name: value for name, value in given.items() if value is not None})

    def central(self, predictor: str | None, length_model: str | Path | None) -> CentralFlags:
        """Combine these flags with the length predictor and the file that keeps what it learned.

        Raises ConfigError as `check` does.
        """
        self.check()
        if length_model is not None and predictor is None:
            raise ConfigError("--length-model is accepted with --predictor alone")
        return CentralFlags(self, predictor, None if length_model is None else Path(length_model))


@dataclass(frozen=True, slots=True)
class CentralFlags:
    """The central queue's flags, its predictor's name, and the file that keeps what was learned."""

    batches: BatchFlags = field(default_factory=BatchFlags)
    predictor: str | None = None
    length_model: Path | None = None

    @contextmanager
    def open(self) -> Iterator[CentralBatching | None]:
        """Yield the batching for a gateway, or None without `batches`. Learned lengths are saved when the block ends.

        Raises ConfigError for an unknown predictor or an unreadable file.
        """
        from headway.gateway.request.central_queue import CentralBatching
        from headway.predict.lengths.choice import length_predictor
        from headway.predict.steps.kept_batch_times import BatchTimes

        row = self.batches.batches
        if row is None:
            yield None
            return
        learner = None if self.predictor is None else length_predictor(self.predictor)
        times = BatchTimes(time.monotonic)
        with ExitStack() as kept:
            if self.length_model is not None and learner is not None:
                for keeper in _keepers(self.length_model, learner, times):
                    kept.enter_context(keeper)
            yield CentralBatching(row=row, settings=self.batches.settings(), times=times, predictor=learner)


def _keepers(path: Path, learner: LengthLearner, times: BatchTimes) -> list[FileKeeper]:
    """Make the keepers that save answer lengths and batch times, after loading what the file already has."""
    from headway.predict.kept_file import FileKeeper
    from headway.predict.lengths.kept import LengthKeeper, load_lengths
    from headway.predict.steps.kept_batch_times import SUFFIX, load_batch_times, save_batch_times

    if path.exists():
        load_lengths(path, learner)
    log = path.with_name(path.name + SUFFIX)
    if rows := load_batch_times(log):
        times.measured(rows)
    keeper = FileKeeper(lambda: times.num_served, lambda: save_batch_times(log, times.rows))
    return [LengthKeeper(learner, path), keeper]

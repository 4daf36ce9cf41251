"""Sends a trace to OpenAI-compatible servers and records what became of each request."""

from headway.loadgen.batch_plan import BatchPlan
from headway.loadgen.batch_replay import replay_batches
from headway.loadgen.replay import replay
from headway.loadgen.replay_book import ReplayReport
from headway.loadgen.replay_options import ReplayOptions

__all__ = ["BatchPlan", "ReplayOptions", "ReplayReport", "replay", "replay_batches"]

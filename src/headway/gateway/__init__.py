"""Talking HTTP to OpenAI-compatible servers: the only package that imports an HTTP library."""

from headway.gateway.batch_dispatch import replay_batches
from headway.gateway.batch_plan import BatchPlan
from headway.gateway.replay import replay
from headway.gateway.replay_book import ReplayReport
from headway.gateway.replay_options import ReplayOptions

__all__ = ["BatchPlan", "ReplayOptions", "ReplayReport", "replay", "replay_batches"]

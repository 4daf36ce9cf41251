"""Talking HTTP to OpenAI-compatible servers: the only package that imports an HTTP library."""

from headway.gateway.client.batch_dispatch import replay_batches
from headway.gateway.client.batch_plan import BatchPlan
from headway.gateway.client.replay import replay
from headway.gateway.client.replay_book import ReplayReport
from headway.gateway.client.replay_options import ReplayOptions

__all__ = ["BatchPlan", "ReplayOptions", "ReplayReport", "replay", "replay_batches"]

"""Sends a trace to OpenAI-compatible servers and records what happened to each request."""

from headway.loadgen.replay import ReplayReport, replay
from headway.loadgen.replay_options import ReplayOptions

__all__ = ["ReplayOptions", "ReplayReport", "replay"]

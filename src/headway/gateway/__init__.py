"""Talking HTTP to OpenAI-compatible servers: the only package that imports an HTTP library."""

from headway.gateway.replay import ReplayOptions, ReplayReport, replay

__all__ = ["ReplayOptions", "ReplayReport", "replay"]

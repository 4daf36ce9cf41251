"""Explains what happened to each request: recorded as it happens (`trail`, `track`), told on demand (the others)."""

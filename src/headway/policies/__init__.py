"""Policies: pure decisions, each composed of four kinds of parts."""

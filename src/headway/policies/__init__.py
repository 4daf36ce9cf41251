"""Policies: pure decisions, put together from four kinds of parts."""

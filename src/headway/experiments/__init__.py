"""Experiments: what is run against what, and how it is made comparable."""

"""Predictors of time and length: `predict` answers, `observe` learns from what really happened."""

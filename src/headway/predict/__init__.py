"""Predictors of times and lengths: `predict` answers, `observe` learns from what happened."""

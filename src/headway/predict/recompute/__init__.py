"""AdaptiveLLM's recompute analyser: prefill rows, 80 regressors, and which one is best."""

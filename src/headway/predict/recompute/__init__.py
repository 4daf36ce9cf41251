"""AdaptiveLLM's recompute analyser: measured prefills, 80 regressors, and which one is best."""

"""Plans a deployment from a trace, targets and GPUs: search, choice, and a check on the real engine."""

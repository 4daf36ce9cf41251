"""From a trace, targets and GPUs to a deployment: what is possible, tried, chosen, and checked on the real engine."""

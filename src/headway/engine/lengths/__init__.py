"""Answer lengths predicted as requests arrive, beside vLLM's API server, and learned from answers that end."""

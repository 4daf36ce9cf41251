"""Answer lengths: predicted when requests arrive, beside vLLM's API server, and learned from finished answers."""

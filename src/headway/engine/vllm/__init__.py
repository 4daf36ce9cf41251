"""At home in vLLM: patches, start, self-check, metrics."""

"""Integration with vLLM's processes: patches, headers, questions, metrics, inspection."""

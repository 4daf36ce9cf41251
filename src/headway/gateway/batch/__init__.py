"""OpenAI's Files and Batch API: requests with hours of time, served in the capacity that all others leave."""

"""OpenAI's Files and Batch API: requests that may take hours, served in what all others leave."""

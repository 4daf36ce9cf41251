"""The other side: traces sent to OpenAI-compatible servers, request by request or in whole batches."""

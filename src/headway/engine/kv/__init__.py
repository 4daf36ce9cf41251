"""KV that leaves the device and comes back: a KV connector of vLLM, its two sides, and the copies."""

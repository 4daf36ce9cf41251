"""KV that leaves the device and comes back: Headway's KV connector with its two sides, and the copies."""

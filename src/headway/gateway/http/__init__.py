"""HTTP parsing, limits, errors and streams of the gateway."""

"""HTTP as the gateway speaks it."""

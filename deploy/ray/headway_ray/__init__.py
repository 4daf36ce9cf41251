"""Headway on Ray Serve LLM: the same schedulers in the replicas, the same routers before them."""

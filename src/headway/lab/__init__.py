"""Engines, simulated and real, set up for studies: shared by commands and benches."""

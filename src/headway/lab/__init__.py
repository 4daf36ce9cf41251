"""Sets up engines, simulated and real, for experiments; shared by commands and benches."""

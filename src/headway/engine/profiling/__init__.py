"""Measures what steps and copies cost on this machine, on the real engine."""

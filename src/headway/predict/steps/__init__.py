"""Costs of steps and KV copies: measured, of a catalogue GPU, or learned while serving."""

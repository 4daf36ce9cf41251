"""What steps and KV copies cost: measured, of a catalogue GPU, or learned while serving."""

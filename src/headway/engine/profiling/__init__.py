"""What steps and copies cost on this machine, measured on the real engine."""

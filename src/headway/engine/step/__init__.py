"""What one step of the engine computes: the scheduler and what it knows."""

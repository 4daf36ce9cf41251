"""One step of the engine: the parts of the scheduler that plan, fill and follow it."""

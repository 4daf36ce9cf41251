"""Model sizes, read from config.json, and the work that they imply."""

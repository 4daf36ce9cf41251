"""The sizes of a model, read from its config.json, and the work that they make."""

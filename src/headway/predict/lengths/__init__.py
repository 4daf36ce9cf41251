"""How long answers will be."""

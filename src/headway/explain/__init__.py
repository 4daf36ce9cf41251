"""What happened to each request: written down as it happens (`trail`, `track`), and told when asked (the others)."""

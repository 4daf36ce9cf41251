"""How servers are started: command lines, processes, cores, and what they say when they cannot."""

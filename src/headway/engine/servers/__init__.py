"""Starting servers: command lines, processes, cores, and their last words when they fail."""

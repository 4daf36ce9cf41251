"""One request, from its arrival to its only end."""

"""One request, from arrival to its only end."""

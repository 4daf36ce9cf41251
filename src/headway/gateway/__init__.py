"""The gateway: one address in front of several instances, which checks, routes and accounts for requests."""

"""The gateway: one address in front of several instances, which judges, routes and accounts for requests."""

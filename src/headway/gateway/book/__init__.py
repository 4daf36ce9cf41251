"""What people look at while the gateway serves."""

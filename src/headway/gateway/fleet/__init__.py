"""The servers behind the gateway: launched or joined, watched, lost and recovered."""

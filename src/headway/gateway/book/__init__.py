"""Accounts, and everything that shows them to people."""

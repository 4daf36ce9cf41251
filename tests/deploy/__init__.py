"""Tests of what is in `deploy/`."""

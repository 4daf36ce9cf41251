"""Tests of `headway.policies.batching`."""

"""Tests of `headway.policies.eviction`."""

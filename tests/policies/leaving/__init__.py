"""Tests of `headway.policies.leaving`."""

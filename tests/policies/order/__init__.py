"""Tests of `headway.policies.order`."""

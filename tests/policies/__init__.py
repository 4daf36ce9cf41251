"""Tests of `headway.policies`."""

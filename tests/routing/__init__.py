"""Tests of `headway.routing`."""

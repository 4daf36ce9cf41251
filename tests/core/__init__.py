"""Tests of `headway.core`."""

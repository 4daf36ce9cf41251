"""Tests; the folders mirror `src/headway`."""

"""Predicts the lengths of answers."""

"""Exploring many points."""

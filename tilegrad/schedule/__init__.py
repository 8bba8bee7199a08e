"""Nests, and how they are cut into tiles."""

"""Measurements against other systems. Nothing here is a test: timings are printed, never asserted."""

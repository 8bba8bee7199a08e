"""Devices: things that run a compiled program."""

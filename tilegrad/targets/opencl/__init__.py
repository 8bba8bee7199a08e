"""Accelerators that are reached through OpenCL."""

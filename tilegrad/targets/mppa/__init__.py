"""Kalray MPPA (KV3): its description, and the two programs that a training is split into."""

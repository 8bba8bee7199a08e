"""What is done with a compiled program on a device: train, keep, evaluate, compare."""

"""What a program is fed: samples, mini-batches, epochs."""

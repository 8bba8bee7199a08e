"""A Cortex-M55 board with banks of RAM."""

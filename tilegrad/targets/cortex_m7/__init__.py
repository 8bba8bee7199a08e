"""A Cortex-M7 board with banks of RAM."""

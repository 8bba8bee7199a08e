"""A microcontroller with one flat memory."""

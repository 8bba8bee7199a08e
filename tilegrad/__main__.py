"""`python -m tilegrad` is `tilegrad`."""

from tilegrad.launch import run

run()

"""`python -m tilegrad` is `tilegrad`."""

from tilegrad.cli import run

run()

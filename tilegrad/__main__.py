"""`python -m tilegrad` is `tilegrad`."""

from tilegrad.launch import run

if __name__ == "__main__":  # processes of an exploration import this, too
    run()

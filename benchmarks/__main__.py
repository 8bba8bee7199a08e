"""`python -m benchmarks`: what `make bench` runs."""

from __future__ import annotations

from benchmarks.training_step import main

if __name__ == "__main__":
    raise SystemExit(main())

"""The nine models tilegrad is measured on, built by code: no downloads, no files."""

from tilegrad.zoo.registry import ZooEntry, build, describe, initial_tensors, names

__all__ = ["ZooEntry", "build", "describe", "initial_tensors", "names"]

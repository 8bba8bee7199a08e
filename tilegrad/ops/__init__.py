"""Operators: one pair of files each (NAME.py and NAME.c), found by their files."""

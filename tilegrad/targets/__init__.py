"""Chips as data, one folder each."""

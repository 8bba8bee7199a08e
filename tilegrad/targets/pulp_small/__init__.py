"""A smaller PULP-like chip."""

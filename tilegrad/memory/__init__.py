"""Lifetimes, aliases, addresses, and an independent proof that they are right."""

"""Rewrites from graph to graph and from graph to program; valid in, valid out."""

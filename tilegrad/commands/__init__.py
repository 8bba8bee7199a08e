"""One module per group of commands: each turns options into calls of the API, and results into a report."""

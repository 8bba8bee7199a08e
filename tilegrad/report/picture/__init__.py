"""What people look at: a record of a run, and the page, traces and plots that are drawn from it."""

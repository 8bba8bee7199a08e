"""One update computed by several devices: shares, who computes them, and how their results become one update."""

"""GAP9's cluster, uncalibrated."""

"""An address for every buffer."""

"""What happens when: the order of transfers, waits and kernel calls."""

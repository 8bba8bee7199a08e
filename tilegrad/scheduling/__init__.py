"""From a program to a schedule for a target."""

"""Facts about graphs and nests that several stages ask for."""

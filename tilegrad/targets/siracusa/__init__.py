"""Siracusa: a PULP cluster of eight cores with scratchpad, L2 and HyperRAM."""

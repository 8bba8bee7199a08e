"""The RISC-V board with vectors."""

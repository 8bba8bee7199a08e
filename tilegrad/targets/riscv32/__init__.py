"""A RISC-V board with one flat memory and up to eight harts."""

"""What kernels and the conducting core cost."""

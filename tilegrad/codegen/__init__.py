"""Plan to C. Only translation happens here; every decision was made before."""

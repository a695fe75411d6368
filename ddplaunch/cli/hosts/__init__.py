"""`run` and `doctor` over several hosts."""

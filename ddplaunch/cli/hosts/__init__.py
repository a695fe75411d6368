"""`run` and `doctor` over several hosts: plan, start and watch them, and the program on each host."""

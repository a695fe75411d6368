"""The ranks of a launch: how many run where, on which CPUs, and with which environment."""

"""What runs inside the ranks of a proof: it records what they train, or feeds one process what they saw."""

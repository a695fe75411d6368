"""Acts on runs of this host: stops them, ends orphans, asks ranks for their stacks."""

"""What the program says of itself: the pages of `--help`, and what a shell completes."""

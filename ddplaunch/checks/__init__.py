"""Facts and launch to findings, purely; one family per file."""

"""Turns values into the text that a terminal, a file or another program gets."""

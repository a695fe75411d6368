"""Moves numbers between the plan and the script's arguments, in both directions: handed out, and adopted."""

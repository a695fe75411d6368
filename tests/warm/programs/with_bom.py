"""Begins with a byte order mark, as editors on Windows write it."""

print("ä", __doc__)

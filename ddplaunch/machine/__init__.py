"""One machine as frozen facts, and its processes."""

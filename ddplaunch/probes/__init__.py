"""One machine as frozen facts; refuses to judge them."""

"""Training scripts that need nothing but torch."""

"""Values to terminal; refuses to decide anything."""

"""From what the logs hold to the root cause and its rank."""

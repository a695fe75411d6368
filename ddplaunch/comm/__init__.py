"""`doctor --comm`: real collectives between ranks and hosts, and what they tell."""

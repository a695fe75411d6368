"""`doctor --comm`: runs real collectives between ranks and hosts, and judges them."""

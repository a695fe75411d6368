"""Rules for the mistakes that guides to distributed training warn of, read from a script's source."""

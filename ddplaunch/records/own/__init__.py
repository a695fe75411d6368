"""What makes a record belong to this user and to one run: how its files are opened, and the locks on its ID."""

"""What makes a record this user's and one run's: how its files are opened, and the locks that hold its id."""

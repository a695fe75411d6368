"""What a launch will execute, decided from options, facts and numbers by pure functions."""

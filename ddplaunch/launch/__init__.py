"""What will be executed, decided from options, facts and numbers; refuses to execute it."""

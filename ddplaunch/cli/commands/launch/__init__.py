"""Commands that plan, check or start a launch, one file each."""

"""What is run from a checkout: the two commands of the README, and the hook that builds the site."""

"""What is known to go wrong in managers of other projects: a list for each target, and scenarios that show it."""

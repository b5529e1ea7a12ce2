"""Commands for people who help: the bundle that they ask for."""

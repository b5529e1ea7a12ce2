"""Commands with which a machine is set up."""

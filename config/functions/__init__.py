"""Settings of edge functions, a module for each family."""

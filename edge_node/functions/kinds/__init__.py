"""The kinds of functions, a module for each."""

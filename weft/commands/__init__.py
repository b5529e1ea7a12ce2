"""Modules of the commands; each holds ``command``."""

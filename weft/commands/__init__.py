"""Modules of the commands. ``groups`` has the table of all; each module is imported when a command of it is called."""

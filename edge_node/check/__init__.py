"""Checks of a configuration: what its types cannot say (``rules``), on this machine and with the data it finds."""

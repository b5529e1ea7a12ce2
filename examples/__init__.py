"""Programs that show Weft at work, in a checkout and in the source distribution; they are not installed."""

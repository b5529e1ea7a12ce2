"""Encryption of a data directory: a ring of data keys under a master key, and a disk that seals what it writes."""

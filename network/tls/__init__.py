"""TLS from PEM files: contexts, revocation lists, alerts."""

"""JSON Web Tokens of an issuer: its keys, the check of a token, and what its claims open (RFC 7519, RFC 8725)."""

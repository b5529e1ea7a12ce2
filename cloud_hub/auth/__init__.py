"""Access control: tokens, JSON Web Tokens, certificates, and the check of a request."""

"""Users, access rules and certificates: the identity of a client and its permissions."""

"""Users, access rules and certificates: who a client is and what it may do."""

"""Edge functions: what becomes of a stream's records before they leave the node (docs/decisions/0071-functions.md)."""

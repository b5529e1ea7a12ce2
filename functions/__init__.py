"""Edge functions: computations on a stream's records before they leave the node (docs/decisions/0071-functions.md)."""

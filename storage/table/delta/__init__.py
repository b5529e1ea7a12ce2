"""Delta tables through deltalake and pyarrow, shared by the hub, the proofs and the sinks."""

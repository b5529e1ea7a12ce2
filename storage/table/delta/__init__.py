"""Delta tables through deltalake and pyarrow, as the hub, the proofs and the sinks share them."""

"""Facts of the cluster log that the hub knows: tokens, tenants, expectations of streams."""

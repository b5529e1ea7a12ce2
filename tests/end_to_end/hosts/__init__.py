"""Several hosts on one machine: hub nodes in network namespaces of their own, and a fleet that knows all of them."""

"""Contents of queues, and the ways in which messages leave them."""

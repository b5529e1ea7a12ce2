"""Reading batches of streams back."""

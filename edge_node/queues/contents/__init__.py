"""What is in queues, and how it leaves them."""

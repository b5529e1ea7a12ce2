"""Commands about edge functions, beside those that show streams of a node."""

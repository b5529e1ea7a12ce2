"""Commands about the tokens of a store."""

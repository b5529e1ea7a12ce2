"""Summaries of shards: what lists of streams, edges and troubles are made of."""

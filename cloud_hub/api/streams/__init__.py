"""Figures of a stream by the states of its shards, its completeness, and the way of one record."""

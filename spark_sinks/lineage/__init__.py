"""Lineage: the records that a row was made of, as ranges of lanes, and the way back from a row to them."""

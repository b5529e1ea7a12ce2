"""Signatures of settings for edges and of function files: what is signed, and by whom. Only edges check them."""

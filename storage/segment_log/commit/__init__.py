"""Appending: from pending records to durable commits."""

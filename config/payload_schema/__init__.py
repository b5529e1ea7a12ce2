"""The schema of a stream's payloads: their format, and the fields that become typed columns."""

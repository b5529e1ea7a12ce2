"""Formats of payloads: bytes of devices to fields, and fields to bytes (docs/decisions/0073-payload-formats.md)."""

"""Typed columns from payloads: JSON, CBOR and MessagePack by a schema (``config.payload_schema``)."""

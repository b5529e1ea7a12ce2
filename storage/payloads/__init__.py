"""Values of payloads by a schema (``config.payload_schema``): checked one by one, or as typed columns."""

"""Windows of records that a hub asks of edges (``weft hub pull``)."""

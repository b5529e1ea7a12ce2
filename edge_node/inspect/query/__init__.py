"""SQL over a node's log, read only: the tables that a query names are loaded into a temporary database."""

from weft.edge_node.inspect.query.engine import FILE_BYTES_MAX, HEAP_BYTES_MAX, Query, QuerySettings, Result
from weft.edge_node.inspect.query.errors import NoSuchTable, QueryRefused, QueryStopped

__all__ = [
    "FILE_BYTES_MAX",
    "HEAP_BYTES_MAX",
    "NoSuchTable",
    "Query",
    "QueryRefused",
    "QuerySettings",
    "QueryStopped",
    "Result",
]

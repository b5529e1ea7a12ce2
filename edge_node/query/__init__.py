"""SQL over a node's log, read only: what a query names is loaded into a database of its own, which goes with it."""

from edge_node.query.engine import Query, QuerySettings, Result
from edge_node.query.errors import NoSuchTable, QueryRefused, QueryStopped

__all__ = ["NoSuchTable", "Query", "QueryRefused", "QuerySettings", "QueryStopped", "Result"]

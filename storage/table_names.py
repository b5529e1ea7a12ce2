"""The names by which a table remembers how far a shard's log has been folded into it."""

from __future__ import annotations


def app_id(cluster_id: bytes, stream: str, shard: int) -> str:
    """The Delta ``txn`` application id under which a table keeps its position in one shard.

    The transaction's version is the end offset: rows of the shard below it are in the table, rows from it on are not.
    The cluster id keeps a table that was copied to another cluster from passing for that cluster's own.
    """
    return f"weft/{cluster_id.hex()}/{stream}/{shard}"

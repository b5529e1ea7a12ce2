"""Names of the facts that Weft stores in a table."""

from __future__ import annotations

from collections.abc import Mapping

from weft.protocols.payloads import PayloadKind, kind_labelled

PAYLOAD_PROPERTY = "weft.payload"
"""Table property for the payload kind, from the table's first version on: `text` or `json`."""


def table_payload(column_type: str | None, properties: Mapping[str, str]) -> PayloadKind:
    """Return the payload kind of a table. The column's type, not the property, decides between bytes and text.

    Args:
        column_type: the Delta type of the column ``payload``.
    """
    if column_type != "string":
        return PayloadKind.BYTES
    named = kind_labelled(properties.get(PAYLOAD_PROPERTY, ""))
    return named if named is PayloadKind.JSON else PayloadKind.TEXT


def app_id(cluster_id: bytes, stream: str, shard: int) -> str:
    """Return the Delta ``txn`` application id of a table's position in one shard.

    The transaction's version is the end offset: rows of the shard below it are in the table, later rows are not. The
    cluster id prevents a table that was copied to another cluster from counting as that cluster's own.
    """
    return f"{app_ids(cluster_id, stream)}{shard}"


def app_ids(cluster_id: bytes, stream: str) -> str:
    """Return the beginning of every transaction id of a stream's table."""
    return f"weft/{cluster_id.hex()}/{stream}/"


def source_ids(app: str) -> tuple[str, str]:
    """Return the ids under which a table stores the source of its position: number and footer CRC of the chunk with the
    last row below the position. A log that was restored to an earlier state and has grown since has another chunk
    there.
    """
    return f"{app}/chunk", f"{app}/crc"

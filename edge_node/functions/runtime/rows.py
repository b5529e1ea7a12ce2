"""Rows of encoded batches."""

from __future__ import annotations

from array import array
from itertools import pairwise

from weft.edge_node.functions.contract import Row
from weft.protocols.batch import decode_columns, decode_header
from weft.protocols.columns import read_u32s


def rows_of(data: bytes, name: str, seq: int) -> list[Row]:
    """Return the rows of a batch of the log from number ``seq`` on, in order. Their payloads are not decoded."""
    header = decode_header(data)
    columns = decode_columns(data, header)
    times = array("q")
    times.frombytes(columns.times)
    keys = columns.keys
    payload = bytes(columns.payload)
    headers = columns.headers
    first = max(0, seq - header.base_seq)
    base = header.base_seq
    rows = [
        Row(time, keys[key], read := payload[start:end], {}, (), at, name, read)
        for at, (time, key, (start, end)) in enumerate(
            zip(times, read_u32s(columns.key_index), pairwise(read_u32s(columns.payload_offsets)), strict=True), base
        )
    ]
    if headers:
        for index, pairs in headers.items():
            rows[index].headers = pairs
    return rows[first:] if first else rows

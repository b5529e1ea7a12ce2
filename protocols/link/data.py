"""Batches of a DATA frame: cut apart by their headers, and checked."""

from __future__ import annotations

from weft.protocols.batch import HEADER_BYTES, BatchHeader, Buffer, check, decode_header
from weft.protocols.errors import Corrupt, Truncated
from weft.protocols.link import BATCHES_MAX


def split_batches(batches: Buffer) -> list[tuple[BatchHeader, memoryview]]:
    """Return the batches of a DATA frame by only their headers, so that their claims can be checked against limits
    before ``check_batch`` spends time and memory on them.

    Raises:
        UnsupportedVersion: a batch of a later format.
        Corrupt: a header is out of bounds, or the frame ends inside a batch.
    """
    view = memoryview(batches)
    found: list[tuple[BatchHeader, memoryview]] = []
    at, whole = 0, len(view)
    may_be_many = whole > BATCHES_MAX * HEADER_BYTES
    while at < whole:
        try:
            header = decode_header(view, at)
        except Truncated as error:
            raise Corrupt(f"a DATA frame ends inside a batch: {error}") from error
        end = at + HEADER_BYTES + header.body_length
        if end > whole:
            raise Corrupt(f"a DATA frame ends inside a batch: {whole - at} of its {header.length} bytes are there")
        found.append((header, view[at:end]))
        at = end
        if may_be_many and len(found) > BATCHES_MAX:
            raise Corrupt(f"a DATA frame of more than {BATCHES_MAX} batches")
    return found


def check_batch(batch: memoryview, header: BatchHeader) -> None:
    """Check a batch of a DATA frame to the last column.

    Args:
        header: the batch's header, as ``split_batches`` decoded it.

    Raises:
        Corrupt: it is damaged or malformed.
    """
    # The checksum alone is not enough: a receiver can never revert a commit, and the table step would fail at every
    # attempt on a body that does not decode.
    check(batch, header)

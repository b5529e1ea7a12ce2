"""The entries of one commit, in the order of the file."""

from __future__ import annotations

import zstandard

from weft.protocols.segment import EntryKind, Whole, encode_body
from weft.storage.segment_log.state.pending import PendingCommit


def commit_entries(
    commit: PendingCommit, mark: bytes, compressor: zstandard.ZstdCompressor | None, frame_bytes: int
) -> list[tuple[EntryKind, bytes]]:
    """Return the mark, the entries that batches refer to, the notices, and the batches, with a fence before batches
    that belong together.

    Args:
        frame_bytes: bytes of an entry in the file beside its body.
    """
    entries = [(EntryKind.STREAMS, mark)]
    if commit.origins:
        entries.append((EntryKind.ORIGINS, encode_body(commit.origins)))
    entries += [(EntryKind.CLOCK, encode_body(clock)) for clock in commit.clocks]
    entries += [(EntryKind.GAP, encode_body(gap)) for gap in commit.gaps]
    batches = [(EntryKind.BATCH, pending.encode(compressor)) for pending in commit.batches]
    if commit.is_whole and len(batches) > 1:
        length = sum(frame_bytes + len(body) for _, body in batches)
        entries.append((EntryKind.WHOLE, encode_body(Whole(length))))
    return entries + batches

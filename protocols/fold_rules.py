"""Rules by which a release writes and folds chunks, and its level (docs/reference/formats/shard-state.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from weft.protocols.chunk_footer import LaneUpdate

LEVEL_MAX = 1
"""Fold level of this release: the highest level of anything that it writes, and that its fold keeps."""


class Extension(NamedTuple):
    """An addition to chunks and to the fold, which a level of its own brings."""

    level: int
    """The level at which it begins: nodes write it once the cluster has reached that."""
    write: Callable[[Sequence[LaneUpdate]], bytes | None]
    """From what a chunk adds to lanes, the extension's bytes in the chunk; None when it has nothing to say."""
    fold: Callable[[bytes | None, bytes], bytes]
    """From what the state keeps, and a chunk's bytes, what the state keeps then."""


class FoldRules(NamedTuple):
    """Rules by which a release writes and folds chunks."""

    level: int = LEVEL_MAX
    extensions: Mapping[int, Extension] = {}
    """Extensions that the release knows, by number. This release has none."""


RELEASE = FoldRules()
"""The rules of this release."""

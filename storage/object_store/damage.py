"""Errors about damaged objects, with the object's key and advice."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from weft.protocols.errors import CodecError, Corrupt, UnsupportedVersion


@contextlib.contextmanager
def naming(key: str) -> Iterator[None]:
    """Add the object's key and advice to errors about damage."""
    try:
        yield
    except UnsupportedVersion as error:
        raise UnsupportedVersion(
            f"{key} was written by a later release of Weft ({error}): install that release again"
        ) from error
    except CodecError as error:
        raise Corrupt(f"{key} is damaged: {error}; restore this object from a backup of the store") from error

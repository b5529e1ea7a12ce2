"""Settings of ``redact``."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from weft.config.functions.fields import FIELDS_MAX
from weft.config.values import Path, Section

_NAMES = Meta(max_length=FIELDS_MAX)


class Redact(Section, frozen=True, kw_only=True):
    """Fields that the node removes, or replaces by a fixed text or a keyed hash. `redact: [a, b]` removes fields."""

    remove: Annotated[
        Annotated[tuple[str, ...], _NAMES],
        Meta(description="Fields to remove; a nested field is `owner.name`."),
    ] = ()
    replace: Annotated[
        Annotated[dict[str, str], _NAMES],
        Meta(description='Fields whose value becomes a fixed text: `plate: "***"`.'),
    ] = {}
    hash: Annotated[
        Annotated[tuple[str, ...], _NAMES],
        Meta(
            description="Fields whose value becomes 32 hex digits: a hash (HMAC-SHA256) with the key in `key_file`. "
            "The same value has the same hash, so that rows can still be grouped."
        ),
    ] = ()
    headers: Annotated[
        Annotated[tuple[str, ...], _NAMES],
        Meta(description="User properties (headers) of messages to remove, by name."),
    ] = ()
    key_file: Annotated[
        Path | None,
        Meta(
            description="File with the key of `hash`, at least 16 bytes, such as `openssl rand -hex 32` prints. Only "
            "the node's user may be able to read it."
        ),
    ] = None

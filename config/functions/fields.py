"""Settings of functions that choose and compute the fields of each row."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from weft.config.values import Expression

FIELDS_MAX = 256
"""Largest number of fields that a function names."""

Fields = Annotated[dict[str, Expression], Meta(min_length=1, max_length=FIELDS_MAX)]
"""Name of a field -> expression."""
Names = Annotated[tuple[str, ...], Meta(min_length=1, max_length=FIELDS_MAX)]
Select = Names | Fields

"""Settings of the function that looks up fields in a file."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from weft.config.functions.fields import FIELDS_MAX
from weft.config.values import Count, MiB, Path, Section, Size

Columns = Annotated[tuple[str, ...], Meta(max_length=FIELDS_MAX)]


class Enrich(Section, frozen=True, kw_only=True):
    """Fields from a file with one row for each machine, device or other name in a record."""

    file: Annotated[
        Path,
        Meta(
            description="CSV file in UTF-8 whose first line names its columns, or an SQLite database. It is read again "
            "when it changes; an unusable one is ignored, and the former one stays in use."
        ),
    ]
    on: Annotated[
        str,
        Meta(min_length=1, description="Field or topic level whose value is looked up, such as `machine`."),
    ]
    column: Annotated[
        str | None,
        Meta(description="Column that has the values of `on`. Unset: the column of the same name."),
    ] = None
    fields: Annotated[
        Columns,
        Meta(description="Columns to add to each record, as fields of their names. Unset: all others of the file."),
    ] = ()
    numbers: Annotated[
        Columns,
        Meta(
            description="Columns of a CSV file that hold numbers. All others are text. SQLite knows its types itself."
        ),
    ] = ()
    missing: Annotated[
        Literal["keep", "drop", "reject"],
        Meta(
            description="Treatment of a record whose value is not in the file. `keep` adds the fields as null. "
            "`drop` discards the record. `reject` sends it to the stream of errors."
        ),
    ] = "keep"
    table: Annotated[
        str | None, Meta(description="Table or view of an SQLite database. Unset: the only one that it has.")
    ] = None
    rows: Annotated[Count, Meta(description="Most rows that the file may have.")] = 100_000
    memory_bytes: Annotated[
        Size, Meta(ge=1 << 10, description="Most memory for the rows. A larger file is refused.")
    ] = field(default=32 * MiB, name="memory")

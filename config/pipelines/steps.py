"""Settings of a pipeline's steps."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, field

from weft.config.pipelines.source import Names
from weft.config.values import Duration, Section

SQL_CHARACTERS_MAX = 65_536
ViewName = Annotated[
    str, Meta(pattern="^[A-Za-z][A-Za-z0-9_]{0,62}$", extra_json_schema={"examples": ["readings", "warm"]})
]
Function = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*$",
        extra_json_schema={"examples": ["my_steps:clean"]},
    ),
]
Options = dict[str, Any]
SqlText = Annotated[str, Meta(min_length=1, max_length=SQL_CHARACTERS_MAX)]
Aggregates = Annotated[dict[str, SqlText], Meta(min_length=1, max_length=256)]


class WindowStep(Section, frozen=True, kw_only=True):
    """Aggregates of windows of `_time`, one row for each window and group. `complete` says when windows are written."""

    every_s: Annotated[
        Duration,
        Meta(ge=1, le=366 * 86_400, description="Length of a window. Windows start at its multiples since 1970, UTC."),
    ] = field(name="every")
    by: Annotated[Names | None, Meta(description="Columns that make a group. Unset: one group of all rows.")] = None
    emit: Annotated[
        Aggregates,
        Meta(description="Columns of the result: name -> SQL aggregate, such as `rms_max: max(rms)`."),
    ]


class Step(Section, frozen=True, kw_only=True):
    """One step: `sql`, `python` or `window`. Steps run in their order; each reads `input`, which is what the step
    before it made."""

    name: Annotated[
        ViewName | None, Meta(description="Name by which SQL of later steps may read the rows that this step makes.")
    ] = None
    sql: Annotated[
        SqlText | None,
        Meta(description="A SELECT of Spark SQL. The table `input` has the rows of the step before it."),
    ] = None
    python: Annotated[
        Function | None,
        Meta(
            description="Function `module:function` that takes a DataFrame and returns one. The module is installed, "
            "or a file in the folder of the pipeline."
        ),
    ] = None
    options: Annotated[
        Options, Meta(description="Arguments of the function, by name. Values are text, numbers, lists and mappings.")
    ] = field(default_factory=dict)
    mode: Annotated[
        Literal["stream", "batch"],
        Meta(
            description="Rows that the step gets. `stream`: the streaming DataFrame, on which Spark's operators with "
            "state work. `batch`: those of one micro-batch, as a plain DataFrame. All steps after it are `batch`, too."
        ),
    ] = "stream"
    window: Annotated[
        WindowStep | None,
        Meta(description="Aggregates of windows that know when they are complete. It is the last step."),
    ] = None

    @property
    def kinds(self) -> list[str]:
        """Return which of ``sql``, ``python`` and ``window`` are given; exactly one is right."""
        return [kind for kind in ("sql", "python", "window") if getattr(self, kind) is not None]

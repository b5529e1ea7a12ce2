"""Entry of a stream's list of functions: the name of a function and its settings."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta, field

from weft.config.functions.alert import Alert
from weft.config.functions.enrich import Enrich
from weft.config.functions.fields import Fields, Select
from weft.config.functions.redact import Redact
from weft.config.functions.reduce import Changes, Deadband, Dedupe, Sample, SwingingDoor
from weft.config.functions.route import Route
from weft.config.functions.settings import FunctionSettings
from weft.config.functions.sparkplug import Sparkplug
from weft.config.functions.user_code import Python
from weft.config.functions.windows import Sql, Window
from weft.config.values import Expression, OneOf

_PLAIN = FunctionSettings()


class FunctionStep(OneOf, frozen=True, kw_only=True):
    """One function of a stream, by its name: `where: rms > 2.5`. A list entry has exactly one."""

    noun: ClassVar[str] = "function"
    beside: ClassVar[tuple[str, ...]] = ("missing",)

    @property
    def facts(self) -> FunctionSettings:
        """Return the settings that the checks read: the function's own, or those of one that only passes rows on."""
        _, settings = self.chosen
        return settings if isinstance(settings, FunctionSettings) else _PLAIN

    @property
    def takes_nulls(self) -> bool:
        """Return whether a field that is missing is null to the function's expressions."""
        return self.missing != "reject"

    where: Annotated[
        Expression | None,
        Meta(description="Keep the rows for which this expression is true; drop the others."),
    ] = None
    set_: Annotated[
        Fields | None,
        Meta(description="Fields to add or to replace: name -> expression. All other fields stay."),
    ] = field(default=None, name="set")
    select: Annotated[
        Select | None,
        Meta(description="Fields to keep, in this order: a list of names, or new name -> expression."),
    ] = None
    python: Annotated[
        Python | None,
        Meta(
            description="A function of yours in a Python file, in a process of its own.",
            extra_json_schema={"x-short": "file"},
        ),
    ] = None
    redact: Annotated[
        Redact | None,
        Meta(
            extra_json_schema={"x-short": "remove"},
            description="Fields to remove, to replace by a text, or to hash with a key. A list is short for `remove`.",
        ),
    ] = None
    route: Annotated[
        Route | None,
        Meta(
            extra_json_schema={"x-short": "rules"},
            description="Other streams that rows go to, by expressions. A list is short for `rules`.",
        ),
    ] = None
    sample: Annotated[
        Sample | None,
        Meta(description="Each n-th row, or one for each period."),
    ] = None
    deadband: Annotated[
        Deadband | None,
        Meta(description="Rows that moved by more than a bound since the last kept one."),
    ] = None
    swinging_door: Annotated[
        SwingingDoor | None,
        Meta(description="Points of a line that passes all rows within a bound."),
    ] = None
    changes: Annotated[
        Changes | None,
        Meta(
            extra_json_schema={"x-short": "fields"},
            description="Rows that do not repeat the last kept one. A list of fields is short for `fields`.",
        ),
    ] = None
    dedupe: Annotated[
        Dedupe | None,
        Meta(description="Rows that do not repeat a recent message, by its identity."),
    ] = None
    enrich: Annotated[Enrich | None, Meta(description="Fields from a CSV file or an SQLite database.")] = None
    alert: Annotated[
        Alert | None, Meta(description="A message to a local MQTT topic when a condition becomes true.")
    ] = None
    sparkplug: Annotated[
        Sparkplug | None,
        Meta(description="Parsed messages of Sparkplug B: births, data, deaths. The first function of its stream."),
    ] = None
    window: Annotated[
        Window | None,
        Meta(description="Aggregates of the rows of each minute, of each session, and so on: one row for each window."),
    ] = None
    sql: Annotated[
        Sql | None,
        Meta(description="A SELECT over the rows of each window, run when the window closes."),
    ] = None
    missing: Annotated[
        Literal["reject", "null"] | None,
        Meta(
            description="Treatment of a missing or null field in the expressions of `where`, `set`, `select`, "
            "`route`, `alert` and `window`. `reject`: the row goes to the errors. `null`: null, as in SQL: "
            "expressions of null are null, a null condition does not hold, and aggregates skip it."
        ),
    ] = "reject"

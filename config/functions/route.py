"""Settings of ``route``."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from weft.config.functions.settings import FunctionSettings
from weft.config.values import Expression, Section


class Rule(Section, frozen=True, kw_only=True):
    """A way out of the chain: rows for which `where` is true go to the stream `to`."""

    to: Annotated[str, Meta(min_length=1, description="Stream that gets the rows.")]
    where: Annotated[Expression | None, Meta(description="Expression that is true for the rows. Unset: all rows.")] = (
        None
    )
    copy: Annotated[
        bool, Meta(description="`true`: the rows also go on, to the next rule and the functions that follow.")
    ] = False


class Route(FunctionSettings, frozen=True, kw_only=True):
    """Rules by which rows go to other streams. `route: [...]` is short for `route: {rules: [...]}`."""

    rules: Annotated[
        tuple[Rule, ...],
        Meta(
            min_length=1,
            max_length=64,
            description="Rules, tried in order for each row. The first rule that is true takes the row, unless it has "
            "`copy: true`. Rows that no rule takes go on to the next function.",
        ),
    ]

    @property
    def targets(self) -> tuple[str, ...]:
        """Return the streams that rows go to."""
        return tuple(dict.fromkeys(rule.to for rule in self.rules))

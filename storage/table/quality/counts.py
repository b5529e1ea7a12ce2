"""Counts of quality rules in a table: transactions of the version that has the rows, so that each row counts once.

A transaction of Delta is a name with a number, and cannot be removed. So a table has a fixed number of places for
checks, and a place that a withdrawn check had is given to another one.

=============== ===================================================================================================
name            number
=============== ===================================================================================================
``rows``        rows that were checked
``from``        sum of the table's positions before the first of them
``K/rule``      place K: number of its check (``checks.number_of``); 0 if it is free
``K/since``     version of the rules that took the place
``K/from``      ``rows`` without those that this check looked at
``K/failed``    rows that failed the check
``field/NAME``  0 while the field NAME has values; otherwise ``rows`` before the first row without one, plus 1
``time``        newest time of a row by a clock that can be believed, microseconds since 1970
``received``    newest time of receipt by the hub
``doubtful``    newest time of receipt of a row whose clock cannot be believed
=============== ===================================================================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import NamedTuple

from weft.config.payload_schema.quality import RULES_MAX
from weft.storage.table.quality.checks import Tally

FAMILY = "quality/"
"""Beginning of the names, behind that of the stream's application."""


class _Held(NamedTuple):
    number: int
    since: int
    start: int
    failed: int


class Counted(NamedTuple):
    """Counts of one check."""

    rows: int
    failed: int


class QualityCounts:
    """The counts in the transactions of a version.

    Args:
        transactions: those of the version.
        applications: beginning of the stream's own, as of ``names.app_ids``.
    """

    def __init__(self, transactions: Mapping[str, int], applications: str) -> None:
        self._of, self._prefix = transactions, f"{applications}{FAMILY}"

    @property
    def rows(self) -> int:
        """Return the number of rows that were checked."""
        return self._get("rows")

    def unchecked(self, done: int) -> int:
        """Return the number of records since the first check that were not checked: a maker of tables did not know the
        rules, or an operator skipped them.

        Args:
            done: sum of the table's positions.
        """
        return max(0, done - self._get("from") - self.rows) if self.rows else 0

    def of(self, number: int) -> Counted | None:
        """Return the counts of a check; None before its first row."""
        place = self._by_number.get(number)
        return None if place is None else Counted(self.rows - place.start, place.failed)

    def absent(self, field: str) -> int | None:
        """Return the number of rows since a field's last value; None if it never had one."""
        since = self._of.get(f"{self._prefix}field/{field}")
        if since is None:
            return None
        return self.rows - since + 1 if since else 0

    @property
    def time(self) -> int:
        """Return the newest time of a row by a clock that can be believed, us since 1970; 0 without one."""
        return self._get("time")

    @property
    def received(self) -> int:
        """Return the newest time of receipt by the hub; 0 without one."""
        return self._get("received")

    @property
    def doubtful(self) -> int:
        """Return the newest time of receipt of a row whose clock cannot be believed; 0 without one."""
        return self._get("doubtful")

    def _get(self, name: str) -> int:
        return self._of.get(f"{self._prefix}{name}", 0)

    @cached_property
    def _by_number(self) -> dict[int, _Held]:
        return {each.number: each for _, each in self._places() if each.number}

    def _places(self) -> Iterator[tuple[int, _Held]]:
        for at in range(RULES_MAX):
            yield at, _Held(*(self._get(f"{at}/{name}") for name in ("rule", "since", "from", "failed")))

    def after(self, tally: Tally, done: int) -> dict[str, int]:
        """Return the transactions that count further rows: those that change.

        Args:
            done: sum of the table's positions before these rows.
        """
        told: dict[str, int] = {}
        if not tally.rows:
            return told
        if not self.rows:
            told["from"] = done
        told["rows"] = self.rows + tally.rows
        left = dict(tally.failed)
        free: list[int] = []
        for at, place in self._places():
            if place.number and (failed := left.pop(place.number, None)) is not None:
                if failed:
                    told[f"{at}/failed"] = place.failed + failed
            elif place.number and (place.number in tally.checks.declared or place.since > tally.checks.version):
                # It could not be made, or the maker of these rows does not know it yet: they are not its rows.
                told[f"{at}/from"] = place.start + tally.rows
            else:
                free.append(at)
                if place.number:
                    told[f"{at}/rule"] = 0
        for (number, failed), at in zip(left.items(), free, strict=False):
            taken = {"rule": number, "since": tally.checks.version, "from": self.rows, "failed": failed}
            told |= {f"{at}/{name}": value for name, value in taken.items()}
        told |= self._fields(tally)
        for name, newest in (("time", tally.time), ("received", tally.received), ("doubtful", tally.doubtful)):
            if newest > self._get(name):
                told[name] = newest
        return {f"{self._prefix}{name}": value for name, value in told.items()}

    def _fields(self, tally: Tally) -> dict[str, int]:
        told = {}
        for name, _ in tally.checks.watched:
            key = f"field/{name}"
            since = self._of.get(f"{self._prefix}{key}")
            if name in tally.valued:
                if since != 0:
                    told[key] = 0
            elif since == 0:
                told[key] = self.rows + 1
        return told

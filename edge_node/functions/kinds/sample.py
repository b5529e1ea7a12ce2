"""The function ``sample``: keeps a sample of the rows."""

from __future__ import annotations

from weft.config.functions.reduce import Sample
from weft.edge_node.functions.contract import Context, Function, Out, Path, Row
from weft.edge_node.functions.series.identity import fields_of, identify
from weft.edge_node.functions.series.state import SeriesState

_NS = 1_000_000_000
_LEFT_OUT = "not one of those that are kept"

_COUNT = 1
"""An entry after its number: rows since the last kept one, or the number of the last period with a kept row."""


class SampleFunction(Function):
    """Keeps the first of each ``every`` rows of a series, or the first row of each ``period``.

    Guarantee: none about dropped rows; no value is changed, and the first row of each series is kept. With ``period``,
    each period in which a series has rows keeps one of them. A row whose time steps back to another period counts as
    the first of a new one.

    State: one number for each series, up to ``keys_max``; with ``every`` it changes with each row.
    """

    def __init__(self, settings: Sample, context: Context) -> None:
        """Start with the first row of each series.

        Raises:
            ValueError: neither or both of ``every`` and ``period`` are set.
        """
        if (settings.every is None) == (settings.period_s is None):
            raise ValueError("sample: set either `every` (a number of rows) or `period` (a duration)")
        self._every = settings.every
        self._period = 0 if settings.period_s is None else max(1, round(settings.period_s * _NS))
        self._series = SeriesState(settings.keys_max)
        self.state = self._series.state
        self._identify = identify(settings.by, context)
        self._reads = fields_of(settings.by, context)
        self.reads_values = bool(self._reads)

    def reads(self) -> frozenset[Path]:
        """Return the fields that identify series."""
        return self._reads

    def process(self, rows: list[Row], out: Out) -> list[Row]:
        """Return the rows that are kept."""
        self._series.restore()
        return self._by_count(rows, out, self._every) if self._every is not None else self._by_period(rows, out)

    def _by_count(self, rows: list[Row], out: Out, every: int) -> list[Row]:
        kept: list[Row] = []
        get, touch = self._series.get, self._series.state.touch
        for row in rows:
            series = self._series_of(row, out)
            if series is None:
                continue
            entry = get(series)
            if entry is not None and entry[_COUNT] < every:
                entry[_COUNT] += 1
                touch(series)
                out.drop(row, _LEFT_OUT)
                continue
            self._keep(series, 1)
            kept.append(row)
        return kept

    def _by_period(self, rows: list[Row], out: Out) -> list[Row]:
        kept: list[Row] = []
        get = self._series.get
        for row in rows:
            series = self._series_of(row, out)
            if series is None:
                continue
            period = row.time // self._period
            entry = get(series)
            # Not "<": after a clock that was far ahead is set back, the series continues.
            if entry is not None and entry[_COUNT] == period:
                out.drop(row, _LEFT_OUT)
                continue
            self._keep(series, period)
            kept.append(row)
        return kept

    def _series_of(self, row: Row, out: Out) -> bytes | None:
        try:
            return self._identify(row)
        except ValueError as error:
            out.reject(row, f"sample: {error}")
            return None

    def _keep(self, series: bytes, count: int) -> None:
        self._series.put(series, count)
        self._series.evict()

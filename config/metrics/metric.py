"""An entry of the metric catalogue."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Metric(NamedTuple):
    """One metric. Names follow the Prometheus conventions: base units, ``_total`` for counters."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()

    @property
    def series(self) -> tuple[str, ...]:
        """Return the names of the metric's series: three for a histogram, otherwise its own."""
        endings = ("_bucket", "_count", "_sum") if self.kind == "histogram" else ("",)
        return tuple(self.name + ending for ending in endings)

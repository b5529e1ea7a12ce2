"""A schema and a sample of payloads: what does not fit, what is never there, and what the schema does not name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from weft.config.payload_schema.inferring import PayloadSample
from weft.config.payload_schema.model import DEFINED, PayloadSchema
from weft.storage.payloads.decoder import MISFIT_COLUMN, PayloadDecoder
from weft.storage.payloads.formats import whole_values

REASONS_MAX = 100
"""Maximum number of reasons of a field that are counted singly: they have values of payloads in them."""


class FieldFindings(NamedTuple):
    """The findings about a field of a schema in a sample."""

    name: str
    values: int
    """Number of records with a value."""
    misfits: int
    reason: str | None
    """The most frequent reason of misfits; None without any."""


class SampleOfSchema:
    """A sample of payloads, held against a schema. Payloads come some thousands at a time."""

    def __init__(self, schema: PayloadSchema) -> None:
        self.records = 0
        self.misfits = 0
        """Records with a field that does not fit, or that are not of their format."""
        self._schema = schema
        self._decoder = PayloadDecoder(schema, [*schema.fields, MISFIT_COLUMN])
        self._values: Counter[str] = Counter()
        self._reasons: dict[str, Counter[str]] = {}
        # A definition names all fields that payloads can have.
        self._found = None if schema.format in DEFINED else PayloadSample()

    def take(self, payloads: Sequence[bytes]) -> None:
        """Add payloads."""
        columns = self._decoder.columns(pa.array(payloads, pa.binary()))
        self.records += len(payloads)
        for name in self._schema.fields:
            self._values[name] += len(payloads) - columns[name].null_count
        misfits = columns[MISFIT_COLUMN]
        self.misfits += len(payloads) - misfits.null_count
        for told in misfits.drop_null().to_pylist():
            for name, reason in told:
                counted = self._reasons.setdefault(name, Counter())
                counted[reason if reason in counted or len(counted) < REASONS_MAX else "other reasons"] += 1
        if self._found is not None:
            self._found.take(*whole_values(self._schema.format)(list(payloads)))

    def fields(self) -> list[FieldFindings]:
        """Return the fields of the schema in its order, and `payload` behind them if some are not of their format."""
        names = [*self._schema.fields, *(self._reasons.keys() - self._schema.fields.keys())]
        return [self._of(name) for name in names]

    def _of(self, name: str) -> FieldFindings:
        reasons = self._reasons.get(name, Counter())
        most = reasons.most_common(1)
        return FieldFindings(name, self._values[name], reasons.total(), most[0][0] if most else None)

    def unnamed(self) -> list[str]:
        """Return lines of a draft, as of `fields:`, for places of payloads that no field of the schema names."""
        if self._found is None:
            return []
        known = [each.path(name) for name, each in self._schema.fields.items()]
        return self._found.lines(known, {name.casefold() for name in self._schema.fields})

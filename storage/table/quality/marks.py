"""Marks of rows that fail: the column `_failed`, with the names of the rules, in tables whose rules ask for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from weft.storage.table.quality.checks import Check

FAILED_COLUMN = "_failed"
"""Column of text, null for a row that fails no rule. Releases that do not know it write null, as for a topic level that
no topic has."""
BETWEEN = ", "


def marked(batch: pa.RecordBatch, failing: Sequence[Check], names: Mapping[int, str]) -> pa.RecordBatch:
    """Return rows with their marks.

    Args:
        failing: the checks that some of the rows fail, in the order of the rules.
        names: number of each check -> name of its rule.
    """
    at = batch.schema.get_field_index(FAILED_COLUMN)
    if not failing:
        if batch.column(at).null_count == batch.num_rows:
            return batch
        return batch.set_column(at, batch.schema.field(at), pa.nulls(batch.num_rows, pa.string()))
    codes = np.zeros(batch.num_rows, np.uint64)
    for number, check in enumerate(failing):
        mask = check.failing(batch).fill_null(False).to_numpy(zero_copy_only=False)
        codes |= mask.astype(np.uint64) << np.uint64(number)
    found, index = np.unique(codes, return_inverse=True)
    rules = [names[check.number] for check in failing]
    texts = [BETWEEN.join(rule for number, rule in enumerate(rules) if code >> number & 1) or None
             for code in found.tolist()]  # fmt: skip
    values = pa.array(texts, pa.string()).take(pa.array(index.astype(np.int64)))
    return batch.set_column(at, batch.schema.field(at), values)

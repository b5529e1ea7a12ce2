"""Values of payloads for the tests of formats."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st

SMALL = st.integers(-(2**63), 2**64 - 1)


def fields(*, integers: st.SearchStrategy[int] = SMALL, binary: bool = True, nan: bool = True) -> Any:
    """Fields that a format of lists and mappings can hold."""
    floats = st.floats(allow_nan=nan, allow_infinity=nan)
    leaves: st.SearchStrategy[Any] = st.none() | st.booleans() | integers | floats | st.text(max_size=20)
    if binary:
        leaves |= st.binary(max_size=20)
    inside = st.recursive(
        leaves,
        lambda each: st.lists(each, max_size=4) | st.dictionaries(st.text(max_size=8), each, max_size=4),
        max_leaves=12,
    )
    return st.dictionaries(st.text(max_size=8), inside, max_size=6)


def same(one: Any, other: Any) -> bool:
    """Whether values are the same, of the same types and in the same order; NaN is the same as NaN."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return math.isnan(one) == math.isnan(other) and (one == other or math.isnan(one))
    return bool(one == other)

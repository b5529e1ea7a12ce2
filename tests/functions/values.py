"""Values of payloads for the tests of formats."""

from __future__ import annotations

import math
from math import inf, nan
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


# --- Examples of RFC 8949, appendix A: the bytes of each item, and what they are as fields


REFUSED = object()
"""In place of a value: simple values without a meaning are not taken."""

EXAMPLES: dict[str, Any] = {
    "00": 0,
    "01": 1,
    "0a": 10,
    "17": 23,
    "1818": 24,
    "1819": 25,
    "1864": 100,
    "1903e8": 1000,
    "1a000f4240": 1000000,
    "1b000000e8d4a51000": 1000000000000,
    "1bffffffffffffffff": 18446744073709551615,
    "c249010000000000000000": 18446744073709551616,
    "3bffffffffffffffff": -18446744073709551616,
    "c349010000000000000000": -18446744073709551617,
    "20": -1,
    "29": -10,
    "3863": -100,
    "3903e7": -1000,
    "f90000": 0.0,
    "f98000": -0.0,
    "f93c00": 1.0,
    "fb3ff199999999999a": 1.1,
    "f93e00": 1.5,
    "f97bff": 65504.0,
    "fa47c35000": 100000.0,
    "fa7f7fffff": 3.4028234663852886e38,
    "fb7e37e43c8800759c": 1.0e300,
    "f90001": 5.960464477539063e-08,
    "f90400": 6.103515625e-05,
    "f9c400": -4.0,
    "fbc010666666666666": -4.1,
    "f97c00": inf,
    "f97e00": nan,
    "f9fc00": -inf,
    "fa7f800000": inf,
    "fa7fc00000": nan,
    "faff800000": -inf,
    "fb7ff0000000000000": inf,
    "fb7ff8000000000000": nan,
    "fbfff0000000000000": -inf,
    "f4": False,
    "f5": True,
    "f6": None,
    "f7": None,
    "f0": REFUSED,
    "f818": REFUSED,
    "f8ff": REFUSED,
    "c074323031332d30332d32315432303a30343a30305a": "2013-03-21T20:04:00Z",
    "c11a514b67b0": 1363896240,
    "c1fb41d452d9ec200000": 1363896240.5,
    "d74401020304": b"\x01\x02\x03\x04",
    "d818456449455446": b"dIETF",
    "d82076687474703a2f2f7777772e6578616d706c652e636f6d": "http://www.example.com",
    "40": b"",
    "4401020304": b"\x01\x02\x03\x04",
    "60": "",
    "6161": "a",
    "6449455446": "IETF",
    "62225c": '"\\',
    "62c3bc": "ü",
    "63e6b0b4": "水",
    "64f0908591": "𐅑",
    "80": [],
    "83010203": [1, 2, 3],
    "8301820203820405": [1, [2, 3], [4, 5]],
    "98190102030405060708090a0b0c0d0e0f101112131415161718181819": list(range(1, 26)),
    "a0": {},
    "a201020304": {"1": 2, "3": 4},
    "a26161016162820203": {"a": 1, "b": [2, 3]},
    "826161a161626163": ["a", {"b": "c"}],
    "a56161614161626142616361436164614461656145": {"a": "A", "b": "B", "c": "C", "d": "D", "e": "E"},
    "5f42010243030405ff": b"\x01\x02\x03\x04\x05",
    "7f657374726561646d696e67ff": "streaming",
    "9fff": [],
    "9f018202039f0405ffff": [1, [2, 3], [4, 5]],
    "9f01820203820405ff": [1, [2, 3], [4, 5]],
    "83018202039f0405ff": [1, [2, 3], [4, 5]],
    "83019f0203ff820405": [1, [2, 3], [4, 5]],
    "9f0102030405060708090a0b0c0d0e0f101112131415161718181819ff": list(range(1, 26)),
    "bf61610161629f0203ffff": {"a": 1, "b": [2, 3]},
    "826161bf61626163ff": ["a", {"b": "c"}],
    "bf6346756ef563416d7421ff": {"Fun": True, "Amt": -2},
}

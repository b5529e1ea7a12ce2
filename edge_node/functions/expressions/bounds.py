"""Bounds of expressions and of their results."""

from __future__ import annotations

CHARACTERS_MAX = 4_000
"""Longest text of an expression."""
NODES_MAX = 200
"""Maximum number of operators, names, values and calls in an expression."""
ARGUMENTS_MAX = 20
"""Maximum number of arguments of ``min``, ``max`` and ``default``."""
DEPTH_MAX = 50
"""Deepest nesting of an expression."""
TEXT_MAX = 1 << 16
"""Longest text that an expression computes, in characters. Text that it only passes on may be as long as its
payload."""
NUMBER_TEXT_MAX = 64
"""Longest text that ``int`` and ``float`` read; Python's time for long ones grows with the square."""
INTEGER_MIN = -(1 << 63)
INTEGER_MAX = (1 << 64) - 1
"""Largest integer in results and literals: every format of payloads can hold it."""
FACTOR_MAX = 1 << 256
"""Largest integer that is multiplied, divided or compared with a remainder: 64-bit numbers may grow on the way to a
result, such as in ``(a * b) // c``, and no work on them takes more than a microsecond."""
FLOAT_MAX = 1.7976931348623157e308
DIGITS_MAX = 15
"""Maximum number of digits in ``round``."""

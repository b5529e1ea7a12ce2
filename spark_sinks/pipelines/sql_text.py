"""The text of a SELECT without trailing semicolons and comments."""

from __future__ import annotations

import re

_PARTS = re.compile(
    r"""
    (?P<space>\s+)
    | (?P<line>--(?:\\\n|[^\r\n])*)
    | (?P<block>/\*)
    | (?P<end>;)
    | (?P<text>
        (?<![A-Za-z0-9_])[rR](?:'[^']*'|"[^"]*")
        | '(?:[^'\\]|\\.|'')*'
        | "(?:[^"\\]|\\.|"")*"
        | `(?:[^`]|``)*`
        | .
      )
    """,
    re.VERBOSE | re.DOTALL,
)
"""Parts of Spark's SQL: a semicolon in a comment ends no statement, and quotes hide both."""


class SeveralStatements(ValueError):
    """Text with a statement behind a semicolon."""


def one_statement(text: str) -> str:
    """Return the text up to the end of its statement: without the semicolons and comments behind it.

    Raises:
        SeveralStatements: another statement follows.
    """
    at = last = 0
    is_over = False
    while at < len(text):
        found = _PARTS.match(text, at)
        assert found is not None
        kind, at = found.lastgroup, found.end()
        if kind == "block":
            at = _after_block(text, at)
        elif kind == "end":
            is_over = True
        elif kind == "text":
            if is_over:
                raise SeveralStatements
            last = at
    return text[:last]


def _after_block(text: str, at: int) -> int:
    """Return the position after a bracketed comment, which may be nested; the end of the text if it is not closed."""
    depth = 1
    for found in re.compile(r"/\*|\*/").finditer(text, at):
        depth += 1 if found[0] == "/*" else -1
        if not depth:
            return found.end()
    return len(text)

"""Errors of expressions: one for their authors, one for a row on which they fail."""

from __future__ import annotations


class InvalidExpression(ValueError):
    """A text that is not a valid expression, with the column, the problem and the remedy."""

    def __init__(self, column: int, message: str) -> None:
        super().__init__(f"column {column}: {message}")
        self.column = column
        """Place in the text, from 1."""
        self._message = message

    def of(self, field: str) -> InvalidExpression:
        """Return the same error for the expression of a field."""
        error = InvalidExpression(self.column, self._message)
        error.args = (f"{field}: {error}",)
        return error


class ExpressionError(Exception):
    """A row on which an expression has no result."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        """Reason for people, such as ``field rms is missing``."""

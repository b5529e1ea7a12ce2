"""Wrong outcomes: what a run of the tests never makes again, whatever the second try would say.

A test that waited too long beside a busy machine may pass when it is run again. A record that is lost, doubled or out
of order, and a claim that is false, is a fault of the product whenever it happened once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class WrongOutcome(AssertionError):
    """A record lost, doubled or out of order, or a false claim."""


@contextmanager
def outcome() -> Iterator[None]:
    """Have the assertions of the block be about the outcome: put it around a recount, and around no wait.

    Raises:
        WrongOutcome: in place of an `AssertionError`.
    """
    try:
        yield
    except WrongOutcome:
        raise
    except AssertionError as error:
        raise WrongOutcome(*error.args) from error


def is_wrong_outcome(error: BaseException | None) -> bool:
    """Return whether an exception is one, or has one in its group or among its causes."""
    seen = set[int]()
    todo = [error]
    while todo:
        error = todo.pop()
        if error is None or id(error) in seen:
            continue
        if isinstance(error, WrongOutcome):
            return True
        seen.add(id(error))
        todo += [error.__cause__, error.__context__]
        if isinstance(error, BaseExceptionGroup):
            todo += error.exceptions
    return False

"""Calls of deltalake and pyarrow, and their errors in one sentence."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from deltalake.exceptions import CommitFailedError

from weft.storage.table.errors import TableConflict, TableError

T = TypeVar("T")
_CAUSE = re.compile(r"\s*(?:\x1b\[\d+m)?\u21b3(?:\x1b\[0m)?\s*(.+)")
"""A line of a tree of causes, with or without colours."""


def guarded(call: Callable[[], T]) -> T:
    """Return the result of a call.

    Raises:
        TableConflict: another writer was first.
        TableError: any other error, including Rust panics, with the original as its cause.
    """
    try:
        return call()
    except TableError:
        raise
    except CommitFailedError as error:
        raise TableConflict(cause_of(error)) from error
    except Exception as error:
        raise TableError(cause_of(error)) from error
    except BaseException as error:
        # A Rust panic derives from BaseException, so that no `except Exception` swallows it; it must not end a node or
        # a query.
        if type(error).__name__ != "PanicException":
            raise
        raise TableError(cause_of(error)) from error


def cause_of(error: BaseException) -> str:
    """Return an error as a sentence: its first line, since deltalake appends a backtrace, or the innermost cause of a
    tree of causes."""
    first, *lines = str(error).splitlines() or [type(error).__name__]
    causes = [found[1] for line in lines if (found := _CAUSE.match(line))]
    return ": ".join([first, *causes[-1:]])

"""The checkpoint of a query of windows: where it is, and what is in it that may not fit the query."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_sinks.completeness.definition import IF_CHANGED, IfChanged
from spark_sinks.errors import ReadError


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Place of a query's position and of the windows still to come.

    Without it every start computes all windows again, to the same result.
    """

    folder: str | os.PathLike[str]
    """Folder or ``s3://`` URI."""
    options: Mapping[str, str] | None = field(default=None, repr=False)
    """Options of its object store, as ``store_options``. None takes those of the hub's store."""
    definition: Mapping[str, object] | None = None
    """Texts or numbers that change with what the windows are made of, such as ``{"version": 2}``. None takes the
    query's ``aggregate``, ``by``, ``prepare``, ``schema``, ``edges`` and ``keys``; of functions their names alone."""
    if_changed: IfChanged = "refuse"
    """Action when the windows in the checkpoint have another definition: ``refuse`` to start, ``recompute`` all
    windows of which log and table have records, or ``keep`` what was given out until its records change."""

    def __post_init__(self) -> None:
        """Check the action.

        Raises:
            ReadError: it is no such word.
        """
        if self.if_changed not in IF_CHANGED:
            raise ReadError(f"if_changed: expected {', '.join(IF_CHANGED)}; got {self.if_changed!r}")

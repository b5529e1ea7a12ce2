"""The checkpoint of a query of windows: its place, and its contents that may not fit the query."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_sinks.completeness.definition import IF_CHANGED, IfChanged
from spark_sinks.errors import ReadError


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Place of a query's position and of its pending windows.

    Without it every start computes all windows again, to the same result.
    """

    folder: str | os.PathLike[str]
    """Folder or ``s3://`` URI."""
    options: Mapping[str, str] | None = field(default=None, repr=False)
    """Options of its object store, as ``store_options``. None takes those of the hub's store."""
    definition: Mapping[str, object] | None = None
    """Texts or numbers that change with the definition of the windows, such as ``{"version": 2}``. None takes the
    query's ``aggregate``, ``by``, ``prepare``, ``schema``, ``edges`` and ``keys``; for functions only their names."""
    if_changed: IfChanged = "refuse"
    """Action when the windows in the checkpoint have another definition: ``refuse`` to start, ``recompute`` all windows
    that have records in log or table, or ``keep`` the written windows until their records change."""

    def __post_init__(self) -> None:
        """Check the action.

        Raises:
            ReadError: it is not one of these words.
        """
        if self.if_changed not in IF_CHANGED:
            raise ReadError(f"if_changed: expected {', '.join(IF_CHANGED)}; got {self.if_changed!r}")

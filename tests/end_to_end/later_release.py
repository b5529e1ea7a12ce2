"""A made-up later release, as a process: ``python -m tests.end_to_end.later_release`` takes the arguments of ``weft``.

It knows one fold level more. Once the cluster is at that level, it writes an extension that this release does not know.
"""

from __future__ import annotations

from tests.support.later_fold import LATER
from weft.cli import main
from weft.cloud_hub.hub import Hub
from weft.commands import hub_cluster
from weft.protocols import chunk_index
from weft.storage.cluster import open_cluster
from weft.storage.fenced_store import check_store


def become_later() -> None:
    """Make this process one of the later release."""
    defaults = Hub.open.__func__.__kwdefaults__  # type: ignore[attr-defined]
    assert defaults is not None
    defaults["rules"] = LATER
    chunk_index.LEVEL_MAX = hub_cluster.LEVEL_MAX = LATER.level  # type: ignore[attr-defined]
    assert open_cluster.__defaults__ is not None
    open_cluster.__defaults__ = (*open_cluster.__defaults__[:-1], LATER.level)
    check_store.__defaults__ = (LATER.level,)


if __name__ == "__main__":
    become_later()
    main()

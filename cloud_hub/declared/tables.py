"""Tables of streams, as the cluster log declares them: latest tables, and how long rows are kept."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from weft.cloud_hub.declared.changes import CannotDeclare, Decision, check_tenant, known_fact, read_fact
from weft.cloud_hub.declared.documents import (
    TABLE,
    LatestDocument,
    TableDocument,
    UnreadableDocument,
    decode,
    encode,
    parse_stream_name,
    stream_name,
)
from weft.cloud_hub.declared.table_keys import wrong_columns, wrong_part
from weft.protocols.lane import NAME_RULE, valid_name
from weft.protocols.shard.shard_state import StreamKey
from weft.storage.cluster_log.log import Change
from weft.storage.cluster_log.state import ClusterState
from weft.storage.table.quality.declared import QUALITY


class DeclaredTables:
    """Declarations about tables, as of the last ``refresh``."""

    def __init__(self) -> None:
        self._seen: tuple[ClusterState, int] | None = None
        self.documents: Mapping[StreamKey, TableDocument] = {}
        """Another mapping after each change."""
        self.unusable: dict[str, str] = {}
        """Names of streams whose declaration cannot be read, each with the reason."""

    def refresh(self, state: ClusterState) -> None:
        """Take over the declarations of the cluster log, if there is an entry about a table since the last call."""
        last = state.last(TABLE)
        if self._seen is not None and self._seen[0] is state and self._seen[1] == last:
            return
        self._seen, self.unusable = (state, last), {}
        found: dict[StreamKey, TableDocument] = {}
        for name, fact in state.facts(TABLE).items():
            try:
                document = decode(fact.document, TableDocument)
            except UnreadableDocument as error:
                self.unusable[name] = str(error)
                continue
            if document.latest is not None and (wrong := wrong_part(document.latest.key)) is not None:
                self.unusable[name] = wrong
                continue
            found[parse_stream_name(name)] = document
        self.documents = found

    def log_terms(self) -> dict[StreamKey, int]:
        """Return the seconds for which the log is kept for streams with a term of their own."""
        return {key: each.log_s for key, each in self.documents.items() if each.log_s is not None}

    def is_instead(self, key: StreamKey) -> bool:
        """Return whether a stream's latest table stands instead of a table of all rows."""
        document = self.documents.get(key)
        return document is not None and document.latest is not None and document.latest.instead

    def sort_of(self, key: StreamKey) -> tuple[str, ...]:
        """Return the columns by which the rows of a stream's files are sorted first."""
        document = self.documents.get(key)
        return () if document is None else document.sort


def set_table(
    key: StreamKey,
    *,
    latest: LatestDocument | None = None,
    retain_s: int | None = None,
    retain_bytes: int | None = None,
    log_s: int | None = None,
    sort: tuple[str, ...] | None = None,
) -> Decision:
    """Declare something about a stream's tables. What is None stays as it was declared.

    Raises:
        CannotDeclare: a name is not valid; from the decision: the tenant is unknown, or something needs the table of
            all rows that would not be made.
    """
    if wrong := [each for each in key if not valid_name(each)]:
        raise CannotDeclare(f"{wrong[0]!r} cannot be a name: {NAME_RULE}")
    if sort and (unsortable := wrong_columns(sort)) is not None:
        raise CannotDeclare(unsortable)
    name = stream_name(key)
    told = {"latest": latest, "retain_s": retain_s, "retain_bytes": retain_bytes, "log_s": log_s, "sort": sort}

    def decide(state: ClusterState) -> Change | None:
        check_tenant(state, key[0])
        fact = state.facts(TABLE).get(name)
        before = TableDocument() if fact is None else read_fact(name, TABLE, fact.document, TableDocument)
        wanted = msgspec.structs.replace(before, **{part: value for part, value in told.items() if value is not None})
        if wanted.latest is not None and wanted.latest.instead:
            _check_instead(state, name, wanted)
        document = encode(wanted, None if fact is None else fact.document)
        return None if fact is not None and document == fact.document else Change(TABLE, name, document)

    return decide


def _check_instead(state: ClusterState, name: str, wanted: TableDocument) -> None:
    if wanted.retain_s is not None or wanted.retain_bytes is not None:
        raise CannotDeclare(
            f"{name} has a retention of the table of all rows (--retain), and with --instead it has no such table. "
            "Withdraw what is declared (`weft hub table remove`), and declare the latest table alone"
        )
    if name in state.facts(QUALITY):
        raise CannotDeclare(
            f"{name} has quality rules, which are counted with the table of all rows, and with --instead it has no "
            "such table. Withdraw them first (`weft hub quality remove`)"
        )


def remove_table(key: StreamKey) -> Decision:
    """Withdraw what is declared of a stream's tables. The tables stay as they are.

    Raises:
        CannotDeclare: from the decision: nothing is declared.
    """
    name = stream_name(key)

    def decide(state: ClusterState) -> Change:
        known_fact(state, TABLE, name)
        return Change(TABLE, name, None)

    return decide

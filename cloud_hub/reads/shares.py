"""Tables as Delta Sharing shows them (PROTOCOL.md of delta-io/delta-sharing): one version with its files, the hints
that rule files out, and the lines of an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from hashlib import sha256
from typing import IO, Any, NamedTuple

import msgspec

from weft.hub_api.answers import ApiError
from weft.storage.object_store import ObjectStore
from weft.storage.table.actions import (
    FEED_PROPERTY,
    READABLE_FEATURES,
    Action,
    AddedFile,
    DeltaState,
    StateBuilder,
    TableError,
    plain_path,
)
from weft.storage.table.deletions import stored_deletions, stored_erased
from weft.storage.table.delta_log import TableLog
from weft.storage.table.files import FileFollower, take_facts

FILES_MAX = 20_000
"""Maximum number of files of one answer: each takes some 3 kB while it is made."""
HISTORY_MAX = 1000
"""Number of versions before the newest that can be read: each costs a GET."""
_LOCAL_TIME, _LOCAL_TIME_FEATURE = "timestamp_ntz", "timestampNtz"


# Hints: predicates by which files are left out. A file is left out only if its statistics prove that no row of it
# matches, so what is not understood leaves none out.

_NODES_MAX = 64
"""Number of nodes above which predicates leave no file out: each costs some microseconds for each file."""
_DIGITS_MAX = 20
"""Number of characters above which a constant is no integer of a column: Python takes long for thousands of digits."""
LOOKS_MAX = 4_000_000
"""Maximum number of looks at files in one reading: one for each file, and for each node that is held against it. They
take some seconds: a million files cost as much with one comparison."""
_INTEGERS = frozenset({"long", "integer", "short", "byte"})
_KINDS: Mapping[str, frozenset[str]] = {
    "int": _INTEGERS,
    "long": _INTEGERS,
    "string": frozenset({"string"}),
    "date": frozenset({"date"}),
}
"""Type of a hint -> the types of columns that statistics prove something about. Those of floats say nothing of NaN,
and those of times are cut to milliseconds."""
_SWAPPED = {
    "equal": "equal",
    "lessThan": "greaterThan",
    "lessThanOrEqual": "greaterThanOrEqual",
    "greaterThan": "lessThan",
    "greaterThanOrEqual": "lessThanOrEqual",
}
_OF_SQL = {
    "=": "equal",
    "==": "equal",
    "<": "lessThan",
    "<=": "lessThanOrEqual",
    ">": "greaterThan",
    ">=": "greaterThanOrEqual",
}
_NAME = r"(?:`(?P<quoted>[^`]+)`|(?P<name>[A-Za-z_]\w*))"
_LITERAL = r"(?:'(?P<text>[^'\\]*)'|(?P<number>-?\d{1,18}))"
_SQL = re.compile(rf"\s*{_NAME}\s*(?P<op>==?|<=?|>=?)\s*{_LITERAL}\s*")
_SQL_SWAPPED = re.compile(rf"\s*{_LITERAL}\s*(?P<op>==?|<=?|>=?)\s*{_NAME}\s*")
_SQL_NULL = re.compile(rf"\s*{_NAME}\s+IS\s+(?P<negated>NOT\s+)?NULL\s*", re.IGNORECASE)


class _Node(msgspec.Struct):
    """A node of a predicate in the protocol's JSON."""

    op: str
    children: list[_Node] = []
    name: str = ""
    value: Any = None
    valueType: str = ""  # noqa: N815  (the protocol's name)


class _Statistics(msgspec.Struct):
    numRecords: int | None = None  # noqa: N815  (Delta's names)
    minValues: dict[str, Any] = {}  # noqa: N815
    maxValues: dict[str, Any] = {}  # noqa: N815
    nullCount: dict[str, Any] = {}  # noqa: N815


class _Rows(msgspec.Struct):
    numRecords: int | None = None  # noqa: N815


_STATISTICS, _ROWS = msgspec.json.Decoder(_Statistics), msgspec.json.Decoder(_Rows)


class _May(NamedTuple):
    """The outcomes that statistics leave open for the rows of a file. For a row with null, a comparison is neither."""

    be_true: bool = True
    be_false: bool = True


class Hints:
    """The predicates of a query; all of them hold for the rows that it wants.

    Args:
        sql: comparisons of a column with a constant, in SQL.
        json: a predicate in the protocol's JSON.
        limit: number of rows that is enough. With a predicate it counts for nothing: a file has fewer rows that match
            than its statistics say.
    """

    def __init__(self, sql: Sequence[str] = (), json: str | None = None, limit: int | None = None) -> None:
        self.is_empty = not sql and json is None
        """True without any predicate, also without one that is not understood."""
        self.limit = limit if self.is_empty else None
        found = [_of_sql(text) for text in sql[: _NODES_MAX + 1]]
        with contextlib.suppress(msgspec.MsgspecError, UnicodeError, RecursionError):
            found += [] if json is None else [msgspec.json.decode(json, type=_Node)]
        self._nodes = [node for node in found if node is not None]
        size = sum(map(_size, self._nodes))
        if size > _NODES_MAX:
            self._nodes, size = [], 0
        self.looks = 1 + size
        """Number of looks that a file costs."""

    def may_match(self, stats: str | None, types: Mapping[str, str]) -> bool:
        """Return whether a file may have a row for which all predicates hold.

        Args:
            stats: the file's statistics in JSON.
            types: Delta types of the columns by name; those of nested ones are left out.
        """
        if not self._nodes or stats is None:
            return True
        try:
            known = _STATISTICS.decode(stats)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return True
        return all(_may(node, known, types).be_true for node in self._nodes)


def _size(node: _Node) -> int:
    """Return the number of nodes; of large predicates a part of it that is above ``_NODES_MAX``."""
    found, waiting = 0, [node]
    while waiting and found <= _NODES_MAX:
        found += 1
        waiting += waiting.pop().children
    return found


def _of_sql(text: str) -> _Node | None:
    """Return a predicate in SQL as a node; None for one that is not understood."""
    if found := _SQL_NULL.fullmatch(text):
        column = _Node("column", name=found["quoted"] or found["name"])
        is_null = _Node("isNull", [column])
        return _Node("not", [is_null]) if found["negated"] else is_null
    found = _SQL.fullmatch(text)
    swapped = None if found else _SQL_SWAPPED.fullmatch(text)
    if (found := found or swapped) is None:
        return None
    column = _Node("column", name=found["quoted"] or found["name"])
    is_text = found["text"] is not None
    literal = _Node("literal", value=found["text"] if is_text else found["number"], valueType="" if is_text else "long")
    op = _OF_SQL[found["op"]]
    return _Node(_SWAPPED[op] if swapped else op, [column, literal])


def _may(node: _Node, known: _Statistics, types: Mapping[str, str]) -> _May:
    below = [_may(each, known, types) for each in node.children] if node.op in ("and", "or", "not") else []
    match node.op, len(node.children):
        case "and", count if count:
            return _May(all(each.be_true for each in below), any(each.be_false for each in below))
        case "or", count if count:
            return _May(any(each.be_true for each in below), all(each.be_false for each in below))
        case "not", 1:
            return _May(below[0].be_false, below[0].be_true)
        case "isNull", 1 if node.children[0].op == "column":
            return _may_be_null(node.children[0].name, known, types)
        case op, 2 if op in _SWAPPED:
            return _may_compare(op, node.children[0], node.children[1], known, types)
    return _May()


def _may_be_null(name: str, known: _Statistics, types: Mapping[str, str]) -> _May:
    nulls = known.nullCount.get(name)
    if name not in types or not isinstance(nulls, int) or known.numRecords is None:
        return _May()
    return _May(nulls > 0, nulls < known.numRecords)


def _may_compare(op: str, left: _Node, right: _Node, known: _Statistics, types: Mapping[str, str]) -> _May:
    if left.op == "literal" and right.op == "column":
        op, left, right = _SWAPPED[op], right, left
    if left.op != "column" or right.op != "literal":
        return _May()
    column = types.get(left.name, "")
    kinds = {kind for each in (left, right) if (kind := each.valueType)} or {"string" if column == "string" else "date"}
    if any(column not in _KINDS.get(kind, ()) for kind in kinds):
        return _May()
    value = _value(right.value, column)
    low, high = (_value(each.get(left.name), column) for each in (known.minValues, known.maxValues))
    if value is None or low is None or high is None:
        return _May()
    match op:
        case "equal":
            return _May(low <= value <= high, not low == value == high)
        case "lessThan":
            return _May(low < value, high >= value)
        case "lessThanOrEqual":
            return _May(low <= value, high > value)
        case "greaterThan":
            return _May(high > value, low <= value)
    return _May(high >= value, low < value)


def _value(value: Any, column: str) -> Any:
    """Return a constant or a bound as a value of the column; None if it is none."""
    try:
        if column in _INTEGERS:
            if isinstance(value, str):
                return int(value) if len(value) <= _DIGITS_MAX else None
            return value if isinstance(value, int) and not isinstance(value, bool) else None
        if not isinstance(value, str):
            return None
        if column != "date":
            return value
        day = date.fromisoformat(value)
        return None if day in (date.min, date.max) else day  # a writer that knows no other days has cut it to these
    except ValueError:
        return None


# One version of a table.


class SharedVersion(FileFollower[AddedFile]):
    """A version of a table with the files that hints do not rule out, which ``read_version`` reads."""

    def __init__(self, hints: Hints) -> None:
        self._hints = hints
        super().__init__()

    def clear(self) -> None:
        """Forget the table."""
        super().clear()
        self._facts = StateBuilder("weft/")
        self._types: dict[str, str] = {}
        self._of: object = None
        self.is_changed = False
        """True if the type of a column changed after files were ruled out by it."""
        self.is_cut = False
        """True if files are missing beyond ``FILES_MAX``, of which those that are there may be enough."""
        self._looks = 0

    def take(self, action: Action) -> None:
        """Take one action of the next entry."""
        super().take(action)
        self._facts.take(action)

    def read_checkpoint(self, file: IO[bytes], name: str) -> None:
        """Take a checkpoint, or a part of one. Raises as ``take_facts``."""
        take_facts(file, name, self._facts.take)
        file.seek(0)
        super().read_checkpoint(file, name)

    def kept(self, added: AddedFile) -> AddedFile | None:
        """Return the file, unless hints rule it out.

        Raises:
            ApiError: 413: there are too many.
        """
        self._looks += self._hints.looks
        if self._looks > LOOKS_MAX:
            raise ApiError(413, "the table has too many files for these predicates", "give shorter ones")
        if not self._hints.may_match(added.stats, self._columns()) and added.deletionVector is None:
            return None
        if len(self.files) < FILES_MAX:
            return added
        if self._hints.limit is None:
            raise _too_many()
        self.is_cut = True
        return None

    def wanted(self) -> list[AddedFile]:
        """Return the files that have as many rows together as the query's limit says, or all of them.

        Raises:
            ApiError: 413: there are too many.
        """
        limit = self._hints.limit
        if limit is None:
            return [*self.files.values()]
        found, rows = list[AddedFile](), 0
        for file in self.files.values():
            if rows >= limit:
                return found
            found.append(file)
            with contextlib.suppress(msgspec.MsgspecError, UnicodeError, RecursionError):
                rows += max(0, _ROWS.decode(file.stats or "{}").numRecords or 0)
        if self.is_cut and rows < limit:
            raise _too_many()
        return found

    def give_up(self) -> None:
        """Let a thread that still reads a checkpoint end at its next file."""
        self._looks = LOOKS_MAX

    def state(self) -> DeltaState:
        """Return the version without its files.

        Raises:
            TableError: the log names no protocol or no schema.
        """
        self._facts.version, self._facts.entry_hash = self.version, self.entry_hash
        return self._facts.state()

    def _columns(self) -> Mapping[str, str]:
        metadata = self._facts.metadata
        if metadata is not self._of:
            now = {} if metadata is None else types_of(metadata)
            self.is_changed |= any(now.get(name) != kind for name, kind in self._types.items())
            self._of, self._types = metadata, now
        return self._types


def _too_many() -> ApiError:
    return ApiError(
        413,
        f"the query needs more than {FILES_MAX} files of the table",
        "give predicates on _shard, _offset or columns that the table is sorted by, or read the bucket itself",
    )


def types_of(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the Delta types of a table's columns that are not nested.

    Raises:
        TableError: the schema is damaged.
    """
    try:
        fields = msgspec.json.decode(metadata["schemaString"])["fields"]
        return {each["name"]: each["type"] for each in fields if isinstance(each["type"], str)}
    except (msgspec.MsgspecError, UnicodeError, RecursionError, LookupError, TypeError) as error:
        raise TableError(f"the table's schema is damaged: {error}") from error


class _Later(FileFollower[None]):
    """The entries after a version, and whether rows left the table in one of them."""

    def __init__(self, earlier: SharedVersion) -> None:
        super().__init__()
        self.version, self.entry_hash, self.rows_left = earlier.version, earlier.entry_hash, False

    def clear(self) -> None:
        """Take it that rows left: the entries in between are gone."""
        super().clear()
        self.rows_left = True

    def take(self, action: Action) -> None:
        """Look at one action of the next entry."""
        self.rows_left |= action.remove is not None and action.remove.dataChange

    def read_checkpoint(self, file: IO[bytes], name: str) -> None:
        """Pass over a checkpoint."""


async def read_version(log: TableLog, version: int | None, hints: Hints) -> SharedVersion:
    """Return a version of a table.

    Args:
        version: None for the newest.

    Raises:
        ApiError: 400, 404, 413.
        TableError, StoreError: it cannot be read.
    """
    if version is not None:
        await _check_history(log, version)
    found = await _read(log, version, hints)
    if found.is_changed and not hints.is_empty:
        found = await _read(log, version, Hints())
    check_readable(found.state(), found.files.values())
    return found


async def _read(log: TableLog, version: int | None, hints: Hints) -> SharedVersion:
    found = SharedVersion(hints)
    try:
        if version is None:
            await log.follow(found)
            if found.version < 0:
                raise no_table()
        elif not await log.follow_to(found, version):
            raise _no_version(version, "its log no longer has what makes it")
    except asyncio.CancelledError:
        found.give_up()
        raise
    return found


def no_table() -> ApiError:
    """Return the refusal of a table that is not there."""
    return ApiError(404, "there is no such table", "GET .../all-tables lists the tables; a new one takes some seconds")


def _no_version(version: int, why: str) -> ApiError:
    return ApiError(400, f"version {version} of the table is not shared: {why}", "leave it out, or read a later one")


async def _check_history(log: TableLog, version: int) -> None:
    """Refuse a version after which rows left the table: they were erased, or became too old."""
    newest = await log.read()
    if newest is None:
        raise no_table()
    if version > newest.version:
        raise _no_version(version, f"the newest is {newest.version}")
    if newest.version - version > HISTORY_MAX:
        raise _no_version(version, f"only {HISTORY_MAX} versions before the newest are, which is {newest.version}")
    if version == newest.version:
        return
    earlier = SharedVersion(Hints())
    earlier.version, earlier.entry_hash = version, await log.entry_hash(version)
    later = _Later(earlier)
    await log.follow(later)
    if later.rows_left:
        raise _no_version(version, "rows were removed from the table since, and are not shared any more")


def check_readable(state: DeltaState, files: Iterable[AddedFile]) -> None:
    """Check that the files of a version have exactly the table's rows.

    Raises:
        ApiError: 400.
    """
    others = set(state.protocol.readerFeatures or ()) - READABLE_FEATURES
    if state.properties().get("delta.columnMapping.mode", "none") != "none":
        others.add("columnMapping")
    others |= {f"partition by {name}" for name in state.metadata.get("partitionColumns") or ()}
    if any(each.deletionVector is not None for each in files):
        others.add("deletionVectors")
    else:
        others.discard("deletionVectors")
    if others:
        raise ApiError(
            400,
            f"the table uses {', '.join(sorted(others))}, which the hub does not share",
            "read the bucket itself, or rewrite the table with the engine that did this",
        )


# Changes between versions, of a table with a feed of them.


class SharedFile(NamedTuple):
    """A file of an answer."""

    file: AddedFile
    kind: str = "file"
    """Word of the protocol. Among changes, ``add``: its rows are new; ``cdf``: its rows say what they are."""
    version: int = -1
    """Version with the changes."""
    time_ms: int = 0
    """Time of that version, milliseconds since 1970."""


class SharedChanges(FileFollower[None]):
    """The changes of versions, which ``read_changes`` reads.

    Args:
        first: their first version.
        last: their last one; entries after it are looked at, too, since rows may have been erased in them.
        erased: version of the table after the last erasure: those up to it are not shared.
    """

    def __init__(self, first: int, last: int, entry_hash: bytes, erased: int) -> None:
        super().__init__()
        self.version, self.entry_hash, self._last, self._erased = first - 1, entry_hash, last, erased
        self.is_lost = False
        """True if the log no longer has all entries."""
        self.changed = list[SharedFile]()
        self.shared_from = first
        """First version whose changes are shared."""
        self.has_metadata = False
        """True if the table's metadata changed."""
        self._entry, self._time_ms, self._is_apart, self._rows_left = first, 0, False, False
        self._added, self._feed = list[AddedFile](), list[AddedFile]()

    def clear(self) -> None:
        """Take it that the entries are gone."""
        super().clear()
        self.is_lost = True

    def read_checkpoint(self, file: IO[bytes], name: str) -> None:  # noqa: ARG002
        """Pass over a checkpoint: the entries before it are not read."""
        self.is_lost = True

    def take(self, action: Action) -> None:
        """Take one action of the next entry. Raises ApiError (413) if there are too many files."""
        if self._entry != self.version + 1:
            self.finish()
            self._entry = self.version + 1
        if action.commitInfo is not None:
            time_ms = action.commitInfo.get("timestamp")
            self._time_ms = time_ms if isinstance(time_ms, int) else 0
        elif action.metaData is not None:
            self.has_metadata = True
            self._is_apart |= (action.metaData.get("configuration") or {}).get(FEED_PROPERTY) != "true"
        elif action.add is not None and action.add.dataChange:
            self._added.append(msgspec.structs.replace(action.add, path=plain_path(action.add.path)))
        elif action.remove is not None:
            self._rows_left |= action.remove.dataChange
        elif action.cdc is not None:
            self._feed.append(AddedFile(plain_path(action.cdc.path), action.cdc.size))

    def finish(self) -> None:
        """Take the end of an entry. Raises as ``take``."""
        # An erasure, and what another engine removed, has whole files in the place of a feed: their rows are not shared
        # any more, and neither are changes of before, which may have them.
        if self._is_apart or (self._rows_left and not self._feed) or self._entry <= self._erased:
            self.shared_from = self._entry + 1
            self.changed.clear()
        elif self._entry <= self._last:
            kind, files = ("cdf", self._feed) if self._feed else ("add", self._added)
            self.changed += [SharedFile(each, kind, self._entry, self._time_ms) for each in files]
            if len(self.changed) > FILES_MAX:
                raise ApiError(413, f"these versions changed more than {FILES_MAX} files", "ask for fewer versions")
        self._time_ms, self._is_apart, self._rows_left, self._added, self._feed = 0, False, False, [], []


async def read_changes(
    store: ObjectStore, key: str, stream: tuple[str, str], first: int, last: int | None
) -> tuple[DeltaState, list[SharedFile]]:
    """Return the newest version of a table without its files, and the files with its changes.

    Args:
        key: key of the table.
        stream: tenant and name of its stream.
        last: None for the newest version.

    Raises:
        ApiError: 400, 404, 413.
        TableError, StoreError: it cannot be read.
    """
    log = TableLog(store, key)
    newest = await log.read()
    if newest is None:
        raise no_table()
    last = newest.version if last is None else last
    if newest.properties().get(FEED_PROPERTY) != "true":
        advice = "read its versions; a latest table gets a feed when it is declared with one"
        raise ApiError(400, "the table has no feed of changes (cdf is not enabled)", advice)
    if not first <= last <= newest.version:
        error = f"{first} to {last} are not versions of the table, whose newest is {newest.version}"
        raise ApiError(400, error, "ask for versions up to that, the first one first")
    if newest.version - first > HISTORY_MAX:
        raise _no_changes(first, f"only those of {HISTORY_MAX} versions are, and the newest is {newest.version}")
    entry_hash = await log.entry_hash(first - 1) if first else b""
    found = SharedChanges(first, last, entry_hash, await _erased_to(store, stream, key, first))
    await log.follow(found)
    found.finish()
    had_feed = True
    if not found.is_lost and found.has_metadata and first:
        before = (await _read(log, first - 1, Hints(limit=0))).state()
        had_feed = before.properties().get(FEED_PROPERTY) == "true"
    if found.is_lost or not had_feed:
        raise _no_changes(first, "the table's log no longer has them all")
    if first < found.shared_from:
        raise _no_changes(first, f"only those from {found.shared_from} on are, since rows were removed from the table")
    check_readable(newest, [each.file for each in found.changed])
    return newest, found.changed


async def _erased_to(store: ObjectStore, stream: tuple[str, str], key: str, first: int) -> int:
    """Return the version of a table after the last erasure of its stream; -1 without any. Times would not tell: a row
    that was overwritten while the command ran is in a feed that is newer than the command's beginning.

    Raises:
        ApiError: an erasure has not ended.
    """
    versions = [-1]
    for number, deletion in (await stored_deletions(store, *stream)).items():
        if deletion.erasure is None:
            continue
        if (erased := await stored_erased(store, *stream, number)) is None:
            raise _no_changes(first, "an erasure of rows of the stream has not ended")
        folder = f"{key}/_delta_log/"
        versions += [int(each.removeprefix(folder)[:20]) for each in erased.entries if each.startswith(folder)]
    return max(versions)


def _no_changes(first: int, why: str) -> ApiError:
    advice = "read the newest version whole, and its changes from then on"
    return ApiError(400, f"the changes from version {first} on are not shared: {why}", advice)


# Lines of an answer, in the protocol's formats.

PARQUET_FORMAT, DELTA_FORMAT = "parquet", "delta"


def answer_format(capabilities: str, state: DeltaState) -> str:
    """Return the format of an answer.

    Args:
        capabilities: header of the request that names the formats that its client takes.

    Raises:
        ApiError: 400: the client takes none that can show the table.
        TableError: the table's schema is damaged.
    """
    types_of(state.metadata)
    asked = dict(part.strip().lower().partition("=")[::2] for part in capabilities.split(";"))
    taken = {each.strip() for each in asked.get("responseformat", PARQUET_FORMAT).split(",")}
    if PARQUET_FORMAT in taken and not _has_local_times(state):
        return PARQUET_FORMAT
    if DELTA_FORMAT in taken:
        return DELTA_FORMAT
    raise ApiError(
        400,
        "the table has times without a zone, which the response format parquet cannot show",
        "use a client that takes the format delta (responseFormat=delta in Spark, use_delta_format in pandas)",
    )


def _has_local_times(state: DeltaState) -> bool:
    return _LOCAL_TIME in state.metadata["schemaString"]


def head_lines(state: DeltaState, form: str, first: int | None = None) -> list[bytes]:
    """Return the lines of the protocol and of the metadata.

    Args:
        first: first version of an answer with changes.
    """
    metadata = {
        "id": state.metadata.get("id", ""),
        "format": {"provider": "parquet", **({} if form == PARQUET_FORMAT else {"options": {}})},
        "schemaString": state.metadata["schemaString"],
        "partitionColumns": [],
        "configuration": {} if first is None else {FEED_PROPERTY: "true"},
    }
    version = state.version if first is None else first
    if form == PARQUET_FORMAT:
        protocol: dict[str, Any] = {"minReaderVersion": 1}
        return [_line({"protocol": protocol}), _line({"metaData": metadata | {"version": version}})]
    # A client's reader asks for the writer's version that knows feeds.
    protocol = {"minReaderVersion": 1, "minWriterVersion": 2 if first is None else 4}
    if _has_local_times(state):
        names = [_LOCAL_TIME_FEATURE]
        protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": names}
        protocol["writerFeatures"] = names if first is None else [*names, "changeDataFeed"]
    return [
        _line({"protocol": {"deltaProtocol": protocol}}),
        _line({"metaData": {"version": version, "deltaMetadata": metadata}}),
    ]


def file_line(shared: SharedFile, url: str, until_ms: int, form: str, *, with_stats: bool) -> bytes:
    """Return the line of a file.

    Args:
        until_ms: end of the URL, milliseconds since 1970.
    """
    file, kind = shared.file, shared.kind
    stats = {"stats": file.stats} if with_stats and file.stats is not None else {}
    end: dict[str, int] = {"expirationTimestamp": until_ms}
    if kind != "file":
        end |= {"version": shared.version, "timestamp": shared.time_ms}
    id_ = sha256(file.path.encode()).hexdigest()[:32]
    if form == PARQUET_FORMAT:
        shown: dict[str, Any] = {"url": url, "id": id_, "partitionValues": {}, "size": file.size}
        return _line({kind: shown | stats | end})
    named = {"path": url, "partitionValues": {}, "size": file.size, "dataChange": kind != "cdf"}
    single = {"cdc": named} if kind == "cdf" else {"add": named | {"modificationTime": shared.time_ms} | stats}
    return _line({"file": {"id": id_, "deltaSingleAction": single} | end})


def _line(value: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(value) + b"\n"

"""Functions on the fields of rows: ``select``, ``set`` and ``redact``."""

from __future__ import annotations

import hmac
import os
import stat
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from weft.config.functions.step import Redact as RedactSettings
from weft.functions.contract import (
    MISSING,
    AsyncFunction,
    Context,
    Function,
    NotReady,
    Out,
    Path,
    Row,
    Values,
    check_no_overlap,
    getter,
    names_in,
    put,
)
from weft.functions.expression_code import function
from weft.functions.expressions import FieldMaker
from weft.protocols.message_headers import stored_name

# ``select`` and ``set``: chosen fields, and computed fields.


class Set(Function):
    """New fields, or other values for fields: each by an expression over the original row.

    Drops nothing; rows on which an expression fails go to the errors. Without state.
    """

    is_stateless = True

    def __init__(self, settings: Mapping[str, str], context: Context) -> None:
        """Compile the expressions.

        Raises:
            ValueError: an expression is not valid, or a field is within another one.
        """
        self._maker = FieldMaker(settings, context.level_names, only=False, nulls=context.nulls)
        self._levels = context.levels

    def process(self, rows: list[Row], out: Out) -> list[Row]:
        """Return the rows with their new fields."""
        return self._maker.make_fields(rows, self._levels, out.reject)


class SelectNew(Function):
    """Only the fields that expressions compute. Rows on which one fails go to the errors. Without state."""

    is_stateless = True
    makes_values = True

    def __init__(self, settings: Mapping[str, str], context: Context) -> None:
        """Compile the expressions.

        Raises:
            ValueError: an expression is not valid, or a field is within another one.
        """
        self._maker = FieldMaker(settings, context.level_names, only=True, nulls=context.nulls)
        self._levels = context.levels

    def reads(self) -> frozenset[Path]:
        """Return the fields of the expressions."""
        return frozenset[Path]().union(*(each.paths for each in self._maker.expressions.values()))

    def process(self, rows: list[Row], out: Out) -> list[Row]:
        """Return the rows with only the new fields."""
        return self._maker.make_fields(rows, self._levels, out.reject)


class SelectNames(Function):
    """Named fields, as far as a row has them. A row that has none of them goes to the errors. Without state."""

    is_stateless = True
    makes_values = True

    def __init__(self, settings: tuple[str, ...]) -> None:
        """Parse the names, which may be dotted.

        Raises:
            ValueError: a name is empty, or a field is within another one.
        """
        names = tuple(dict.fromkeys(settings))
        check_no_overlap(names)
        self._getters = [(names_in(name), getter(name)) for name in names]
        self._reason = f"it has none of the fields {', '.join(names)}"
        self._reads = frozenset(path for path, _ in self._getters)
        self._make: Callable[[Values], Values] = self._nested
        if all(len(path) == 1 for path, _ in self._getters):
            self._make = _plain(names)

    def reads(self) -> frozenset[Path]:
        """Return the chosen fields."""
        return self._reads

    def process(self, rows: list[Row], out: Out) -> list[Row]:
        """Return the rows with only these fields."""
        make = self._make
        done: list[Row] = []
        for row in rows:
            made = make(row.values)
            if not made:
                out.reject(row, self._reason)
                continue
            row.values = made
            row.payload = None
            done.append(row)
        return done

    def _nested(self, values: Values) -> Values:
        made: Values = {}
        for names, get in self._getters:
            value = get(values)
            if value is not MISSING:
                made = put(made, names, 0, value)
        return made


_PLAIN = """
def run(values):
    try:
        return {made}
    except Missing:
        return {{name: values[name] for name in names if name in values}}
"""


def _plain(names: tuple[str, ...]) -> Callable[[Values], Values]:
    """Return a function that takes fields by name. Most rows have all of them: a mapping created in one expression."""
    made = ", ".join(f"{name!r}: values[{name!r}]" for name in names)
    return function(_PLAIN.format(made=f"{{{made}}}"), {}, Missing=KeyError, names=names)


def make_select(settings: tuple[str, ...] | Mapping[str, str], context: Context) -> Function:
    """Create the function for a list of names, or for new names with expressions.

    Raises:
        ValueError: a name or an expression is not valid.
    """
    return SelectNew(settings, context) if isinstance(settings, Mapping) else SelectNames(settings)


# ``redact``: fields that do not leave the node.

KEY_BYTES_MIN = 16
HASH_BYTES = 16
"""Number of bytes kept of a hash: two of a billion values have the same one with a probability of 10^-21."""
_to_json = msgspec.json.Encoder().encode


class Redact(Function):
    """Remove, replace and hash fields; remove headers.

    Drops no row. A row in which the path to a field leads through a value other than a mapping goes to the errors: that
    value may be the one to redact. The errors get none of its payload, and its reasons name fields without values.
    Payloads are always encoded from the checked values. Without state.
    """

    is_stateless = True
    redacts = True

    def __init__(self, settings: RedactSettings, key: bytes = b"") -> None:
        """Parse the names of fields, which may be dotted.

        Raises:
            ValueError: the settings redact nothing, or name a field twice.
        """
        fields = [*settings.remove, *settings.replace, *settings.hash]
        if not fields and not settings.headers:
            raise ValueError("nothing to redact; name fields in `remove`, `replace` or `hash`, or `headers`")
        if twice := sorted({field for field in fields if fields.count(field) > 1}):
            raise ValueError(f'"{twice[0]}" is named twice')
        check_no_overlap(fields)
        self._key = key
        self._remove = [names_in(field) for field in settings.remove]
        self._replace = [(names_in(field), text) for field, text in settings.replace.items()]
        self._hash = [names_in(field) for field in settings.hash]
        self._headers = frozenset(settings.headers) | {stored_name(name) for name in settings.headers}

    def process(self, rows: list[Row], out: Out) -> list[Row]:
        """Return the redacted rows."""
        done: list[Row] = []
        for row in rows:
            try:
                values = self._redacted(row.values)
            except _NotRedacted as error:
                out.reject(row, str(error))
                continue
            row.values = values
            # Also where no field was found: a payload may have a name twice, and its reader may use the other one.
            row.payload = None
            if row.headers and self._headers:
                row.headers = tuple(pair for pair in row.headers if pair[0] not in self._headers)
            done.append(row)
        return done

    def _redacted(self, values: Values) -> Values:
        values = dict(values)
        for names in self._remove:
            if (holder := _holder(values, names)) is not None:
                del holder[names[-1]]
        for names, text in self._replace:
            if (holder := _holder(values, names)) is not None:
                holder[names[-1]] = text
        for names in self._hash:
            if (holder := _holder(values, names)) is not None:
                holder[names[-1]] = self._hashed(holder[names[-1]])
        return values

    def _hashed(self, value: Any) -> str | None:
        if value is None:
            return None  # Null has nothing to hide.
        if isinstance(value, str):
            value = value.encode(errors="surrogatepass")
        try:
            data = value if isinstance(value, bytes) else _to_json(value)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise _NotRedacted(f"a value cannot be hashed: {error}") from None
        return hmac.digest(self._key, data, "sha256")[:HASH_BYTES].hex()


class RedactWithKey(AsyncFunction, Redact):
    """Redaction with hashes, whose key is read from its file before the first rows. Without state."""

    def __init__(self, settings: RedactSettings, path: str) -> None:
        """Parse the names of fields, and set the file of the key.

        Raises:
            ValueError: a field is named twice.
        """
        Redact.__init__(self, settings)
        self._path = path

    async def prepare(self) -> None:
        """Read the key, once.

        Raises:
            NotReady: the file cannot be used. Rows wait, since they must not leave with hashes of another key.
        """
        if not self._key:
            self._key = read_key(self._path)

    def version(self) -> str:
        """Return a fingerprint of the key: with another key the same values have other hashes."""
        return hmac.digest(self._key, b"weft redact key", "sha256")[:4].hex() if self._key else ""


def make_redact(settings: RedactSettings, _context: Context) -> Function:
    """Create the function, with a key where it hashes.

    Raises:
        ValueError: the settings do not fit together.
    """
    if not settings.hash:
        return Redact(settings)
    if settings.key_file is None:
        raise ValueError("`hash` needs a `key_file`: without a key, anyone could hash all possible values and compare")
    return RedactWithKey(settings, settings.key_file)


class _NotRedacted(Exception):
    pass


def _holder(values: Values, names: tuple[str, ...]) -> dict[str, Any] | None:
    """Return the mapping that has the last name of a path, as a copy in its place; None where there is none.

    Raises:
        _NotRedacted: a value on the path is neither a mapping nor null.
    """
    holder = values
    for at, name in enumerate(names[:-1]):
        inner = holder.get(name)
        if inner is None:
            return None
        if not isinstance(inner, dict):
            raise _NotRedacted(f"{'.'.join(names[: at + 1])} is not a mapping, so {'.'.join(names)} cannot be redacted")
        # Other rows may share it, such as one that was routed as a copy.
        holder[name] = inner = dict(inner)
        holder = inner
    return holder if names[-1] in holder else None


def read_key(path: str) -> bytes:
    """Return the key in a file, without white space around it.

    Raises:
        NotReady: the file cannot be read, other users than its owner and group may read it, or the key is short.
    """
    try:
        with open(path, "rb") as file:
            mode, data = os.fstat(file.fileno()).st_mode, file.read(1 << 16)
    except OSError as error:
        raise NotReady(f"cannot read {path}: {error.strerror}. Make a key with `openssl rand -hex 32`") from None
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        raise NotReady(f"every user of the machine may read {path}; `chmod o= {path}`")
    key = data.strip()
    if len(key) < KEY_BYTES_MIN:
        raise NotReady(f"the key in {path} has {len(key)} bytes, at least {KEY_BYTES_MIN} are needed")
    return key

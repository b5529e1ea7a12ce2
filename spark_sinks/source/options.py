"""The options of ``format("weft")``."""

from __future__ import annotations

import contextlib
import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from spark_sinks.errors import ReadError
from spark_sinks.source.typed import declared, is_none
from weft.config.payload_schema.model import PayloadSchema
from weft.protocols.lane import NAME_RULE, valid_name

# Start and end of a read: record offsets per shard, or a time or word that stands for them.
#
# Offsets are the log's own (``_offset`` of ``_shard``), so they stay valid when chunks become table rows.

Offsets = dict[int, int]
"""Shard -> offset of the next record to read."""
Position = Literal["earliest", "latest"] | Offsets | datetime
CHUNKS = "chunks"
"""Key beside the shards of a checkpoint's offsets, for the chunks of the log that they are in."""
READ = "read"
"""Likewise, for records that a query has read in another region: no text of offsets for ``starting`` names them."""
EXPECTED_TIME = "a time such as 2024-05-01T06:00:00Z"
EXPECTED = f'earliest, latest, {EXPECTED_TIME}, or offsets by shard such as {{"0": 1200, "1": 0}}'
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_position(option: str, text: str) -> Position:
    """Read the value of ``starting`` or ``ending``. A time without a zone is UTC.

    Raises:
        ReadError: it has none of the forms of ``EXPECTED``.
    """
    lower = text.strip().lower()
    if lower == "earliest":
        return "earliest"
    if lower == "latest":
        return "latest"
    try:
        if lower.startswith("{"):
            return from_json(msgspec.json.decode(text))
        return in_utc(datetime.fromisoformat(text.strip()))
    except (ValueError, msgspec.MsgspecError, RecursionError):
        raise ReadError(f"{option}: expected {EXPECTED}; got {text!r}") from None


def parse_moment(option: str, value: datetime | str) -> datetime:
    """Return a moment with a zone. A text is ISO 8601; without a zone it is UTC.

    Raises:
        ReadError: it is not a moment.
    """
    with contextlib.suppress(ValueError):
        value = datetime.fromisoformat(value.strip()) if isinstance(value, str) else value
    if not isinstance(value, datetime):
        raise ReadError(f"{option}: expected {EXPECTED_TIME}; got {value!r}")
    return in_utc(value)


def in_utc(moment: datetime) -> datetime:
    """Return a time with a zone, UTC when it has none."""
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def from_json(value: Any) -> Offsets:
    """Return offsets from their JSON form: ``{"0": 1200, "1": 0}``. The chunks of a checkpoint are left out.

    Raises:
        ValueError: it has another form.
    """
    if isinstance(value, dict):
        value = {shard: offset for shard, offset in value.items() if shard != CHUNKS}
    if not isinstance(value, dict) or not all(type(offset) is int and offset >= 0 for offset in value.values()):
        raise ValueError(f"expected offsets by shard, got {value!r}")
    return {int(shard): offset for shard, offset in value.items()}


def to_json(offsets: Offsets) -> dict[str, int]:
    """Return offsets by shard in their JSON form."""
    return {str(shard): offset for shard, offset in sorted(offsets.items())}


def offsets_text(offsets: Offsets) -> str:
    """Return the form for the options ``starting`` and ``ending``."""
    return msgspec.json.encode(to_json(offsets)).decode()


def check_offsets(option: str, offsets: Offsets, heads: Offsets) -> None:
    """Check that offsets name every shard of the log once, and no record beyond its end.

    Args:
        heads: the end of the log, per shard.

    Raises:
        ReadError: they do not.
    """
    if offsets.keys() != heads.keys():
        raise ReadError(
            f"{option}: the offsets name the shards {_names(offsets)}; name each shard of the log once: {_names(heads)}"
        )
    for shard, offset in offsets.items():
        if offset > heads[shard]:
            raise ReadError(
                f"{option}: offset {offset} of shard {shard} is past the end of the log, {heads[shard]}. "
                "If these offsets come from a checkpoint, it belongs to another store, or the store was restored to an "
                "earlier state"
            )


def of_checkpoint(offsets: Offsets, heads: Offsets) -> Offsets:
    """Return the offsets of a checkpoint for every shard of the log. A shard that was added later begins at 0.

    Raises:
        ReadError: they name a shard that the log lacks, or an offset beyond its end.
    """
    unknown = offsets.keys() - heads.keys()
    if unknown:
        raise ReadError(
            f"checkpoint: it names shard {_names(dict.fromkeys(unknown, 0))}, and the store has the shards "
            f"{_names(heads)}. The checkpoint belongs to another store: name the store that it was made with, or start "
            "with a new checkpoint"
        )
    whole = dict.fromkeys(heads, 0) | offsets
    check_offsets("checkpoint", whole, heads)
    return whole


def limited(start: Offsets, end: Offsets, records_max: int) -> Offsets:
    """Return the end of a read from ``start`` towards ``end`` of at most ``records_max`` records, at least 1.

    Shards share the limit evenly, and shards with fewer records leave the rest of their part to the others, so that a
    shard with a long backlog does not delay the others.
    """
    left = records_max
    result = {}
    by_backlog = sorted(start, key=lambda shard: (end[shard] - start[shard], shard))
    for done, shard in enumerate(by_backlog):
        share = -(-left // (len(by_backlog) - done))
        taken = max(0, min(end[shard] - start[shard], share))
        result[shard] = start[shard] + taken
        left -= taken
    return result


def nanoseconds(moment: datetime) -> int:
    """Return nanoseconds since 1970."""
    return (moment - _EPOCH) // timedelta(microseconds=1) * 1000


def _names(offsets: Offsets) -> str:
    return ", ".join(map(str, sorted(offsets))) or "none"


# Options of the object store that a reader reads from its environment and sends to executors.

GROUPS = {
    "s3": (
        ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
        ("AWS_REGION", "AWS_DEFAULT_REGION"),
        ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
        ("AWS_ALLOW_HTTP",),
    ),
    "gs": (
        ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("GOOGLE_BASE_URL",),
        ("GOOGLE_ALLOW_HTTP",),
    ),
    "az": (
        ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_KEY"),
        ("AZURE_STORAGE_CLIENT_ID", "AZURE_STORAGE_CLIENT_SECRET", "AZURE_STORAGE_TENANT_ID"),
        ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
        ("AZURE_ALLOW_HTTP",),
    ),
}
"""Scheme of a store's URI -> variables that belong together: a key of one account with another's session token opens
nothing."""
_PREFIXES = {"s3": "AWS_", "gs": "GOOGLE_", "az": "AZURE_"}


def with_environment(options: Mapping[str, str], environment: Mapping[str, str], uri: str) -> dict[str, str]:
    """Return the options, completed from the environment for a store in a bucket.

    Executors run on other machines, and Python workers have the JVM's environment at its start. So the driver's
    variables are sent along, as Spark does for ``s3a://``. Roles of machines are not in the environment: each machine
    uses its own. A variable that names a file is sent as it is: the file has to be on each machine.

    Args:
        options: the given options, by object_store's names in capitals. A group with at least one given option is not
            completed.
        environment: the driver's.
        uri: of the store.
    """
    found, scheme = dict(options), uri.partition("://")[0]
    for group in GROUPS.get(scheme, ()) if "://" in uri else ():
        if not any(name in options or name.removeprefix(_PREFIXES[scheme]) in options for name in group):
            found |= {name: environment[name] for name in group if environment.get(name)}
    return found


# URLs of a hub, and files of tokens and certificate authorities: for sinks, and for reads through a hub.

TOKEN_VARIABLE = "WEFT_TOKEN"  # noqa: S105  (its name)
TOKEN_CHARACTERS_MAX = 8192
CA_CHARACTERS_MAX = 1 << 20
_URL_CHARACTERS_SHOWN = 80


def read_text(path: str | os.PathLike[str] | None, most: int) -> str | None:
    """Return the text of a file; None without a path.

    Args:
        most: maximum number of characters.

    Raises:
        ValueError: it cannot be read, is empty, or is too long. The sentence names the file.
    """
    if path is None:
        return None
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(most + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{os.fspath(path)} cannot be read: {error}") from None
    if len(text) > most or not text.strip():
        raise ValueError(f"{os.fspath(path)} is empty, or has more than {most} characters")
    return text


def one_token(text: str) -> str:
    """Return the token that a text consists of.

    Raises:
        ValueError: there is none, there are several words, or some that no token has.
    """
    words = text.split()
    if len(words) != 1 or not words[0].isascii() or not words[0].isprintable():
        raise ValueError("expected one token on one line; write it again")
    return words[0]


def check_urls(urls: Sequence[str]) -> None:
    """Check the URLs of a hub's nodes.

    Raises:
        ValueError: there is none, or one is not usable. The sentence shows no password.
    """
    for url in urls:
        try:
            parts = urlsplit(url)
            named = parts.scheme in ("http", "https") and parts.hostname and parts.username is None
            found = f"{parts.scheme}://{parts.hostname}" if "@" in url else url[:_URL_CHARACTERS_SHOWN]
        except ValueError as error:
            named, found = None, f"a URL that cannot be read: {error}"
        if not named and "://" not in url and "@" not in url:
            raise ValueError(
                f"hub: {found} has no scheme. Write http://{found}, or https://{found} for a hub with certificates"
            )
        if not named:
            raise ValueError(f"hub: expected http://host:port or https://host:port without a password; got {found}")
    if not urls:
        raise ValueError("hub: expected the URL of at least one node, such as http://127.0.0.1:8090")


# The hub of a read: its URLs, a token, and certificate authorities.


@dataclass(frozen=True, slots=True)
class HubAccess:
    """A hub, as the driver passes it on to tasks."""

    urls: tuple[str, ...]
    """URLs of its nodes, tried in turn."""
    token: str | None = field(default=None, repr=False)
    ca: str | None = field(default=None, repr=False)
    """Certificate authorities in PEM; None for the system's."""
    token_file: str | None = None
    """File on the driver that the token is from; None if it is from the environment."""

    def renewed(self) -> HubAccess:
        """Return the access with the token that its file has now: a token may end before a query does. For the driver.

        While the file cannot be read, or has no token, the one that is known remains.
        """
        try:
            text = read_text(self.token_file, TOKEN_CHARACTERS_MAX)
            return self if text is None else replace(self, token=one_token(text))
        except ValueError:
            return self


def hub_access(given: Mapping[str, str]) -> HubAccess | None:
    """Return the hub of a read's options; None without one. The driver reads the files.

    Raises:
        ReadError: a URL is not valid, or a file cannot be read.
    """
    if "hub" not in given:
        alone = next((name for name in ("token_file", "ca_file") if name in given), None)
        if alone is not None:
            raise ReadError(f"{alone}: it is for reads through a hub; name that with the option hub")
        return None
    urls = tuple(url.strip().rstrip("/") for url in given["hub"].split(",") if url.strip())
    try:
        check_urls(urls)
    except ValueError as error:
        raise ReadError(str(error)) from None
    option = "token_file"
    try:
        text = read_text(given.get(option), TOKEN_CHARACTERS_MAX) or os.environ.get(TOKEN_VARIABLE)
        token = one_token(text) if text else None
        option = "ca_file"
        return HubAccess(urls, token, read_text(given.get(option), CA_CHARACTERS_MAX), given.get("token_file"))
    except ValueError as error:
        raise ReadError(f"{option}: {error}") from None


NAMES = (
    "store",
    "tenant",
    "stream",
    "streams",
    "starting",
    "ending",
    "since",
    "until",
    "edges",
    "keys",
    "columns",
    "schema",
    "payload_format",
    "max_records_per_trigger",
    "fail_on_data_loss",
    "hub",
    "token_file",
    "ca_file",
)
_PLACES = (("store", "/var/lib/weft/hub or s3://bucket/weft"), ("stream", "telemetry"))
"""Required options, each with an example."""
STORE_PREFIX = "store."
"""Prefix of options for the object store: `store.aws_region` becomes ``AWS_REGION``."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a read, checked as far as possible without looking at the store."""

    store: str
    """Root of the store: a path, ``file://``, ``s3://``, ``gs://`` or ``az://``; empty for a read through a hub."""
    stream: str
    tenant: str = "default"
    store_options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Options for the object store; may hold credentials."""
    starting: Position = "earliest"
    ending: Position = "latest"
    since: datetime | None = None
    """Only records with a ``_time`` of this moment or later."""
    until: datetime | None = None
    """Only records with a ``_time`` before this moment."""
    edges: frozenset[str] | None = None
    """Names of the edge nodes whose records to read; None means all."""
    keys: tuple[str, ...] | None = None
    """Keys of the records to read, or topic filters that match the keys; None means all."""
    columns: tuple[str, ...] | None = None
    """Names of the columns to read; None means all."""
    schema: PayloadSchema | None = None
    """Fields of the payloads that become typed columns; None takes those that are declared for the stream."""
    version: int | None = None
    """Version of the schema, if it is the declared one: the column ``_schema`` has it."""
    is_typed: bool = True
    """False makes no typed columns, also none of a declared schema."""
    max_records_per_trigger: int | None = None
    fail_on_data_loss: bool = True
    """False continues without records that are no longer in the log or in the table."""
    hub: HubAccess | None = None
    """Hub to read through, instead of the store."""


def parse_options(options: Mapping[str, str]) -> ReadOptions:
    """Check the options of a read.

    Raises:
        ReadError: one is missing, unknown or not valid.
    """
    given = {name.lower(): value for name, value in options.items()}
    if "provider" in given:
        raise ReadError(
            "CREATE TABLE: Spark hands a Python source no options when it reads a table of its catalog. Use CREATE "
            "TEMPORARY VIEW NAME USING weft OPTIONS (...), or register(spark, store) for all streams"
        )
    _check_names(given)
    hub = hub_access(given)
    if hub is not None and (taken := [name for name in given if name == "store" or name.startswith(STORE_PREFIX)]):
        raise ReadError(f"{taken[0]}: with the option hub, the store is not read; leave one of them out")
    places = (("stream", "telemetry"),) if hub is not None else _PLACES
    for name, example in places:
        if not given.get(name):
            raise ReadError(f'{name}: missing; give it with .option("{name}", ...), for example {example}')
    for name in ("tenant", "stream"):
        if name in given and not valid_name(given[name]):
            raise ReadError(f"{name}: expected {NAME_RULE}; got {given[name]!r}")
    edges = _optional_names("edges", given)
    return ReadOptions(
        store=given.get("store", ""),
        stream=given["stream"],
        tenant=given.get("tenant", "default"),
        store_options=tuple(sorted(_store_options(given).items())),
        starting=parse_position("starting", given.get("starting", "earliest")),
        ending=parse_position("ending", given.get("ending", "latest")),
        since=_moment("since", given),
        until=_moment("until", given),
        edges=None if edges is None else frozenset(edges),
        keys=_optional_names("keys", given),
        columns=_optional_names("columns", given),
        schema=None if is_none(given.get("schema")) else declared(given.get("schema"), given.get("payload_format")),
        is_typed=not is_none(given.get("schema")),
        max_records_per_trigger=_count("max_records_per_trigger", given),
        fail_on_data_loss=_truth("fail_on_data_loss", given, default=True),
        hub=hub,
    )


def source_options(
    stream: str,
    tenant: str,
    store: str | os.PathLike[str] | None,
    store_options: Mapping[str, str] | None = None,
    **of_hub: str | os.PathLike[str] | None,
) -> dict[str, str]:
    """Return the options of ``format("weft")`` for the arguments of functions that read a stream.

    Args:
        of_hub: ``hub``, ``token_file`` and ``ca_file``; None where one is not given.
    """
    named = {"stream": stream, "tenant": tenant}
    named |= {name: os.fspath(value) for name, value in {"store": store, **of_hub}.items() if value is not None}
    return named | {f"{STORE_PREFIX}{name}": value for name, value in (store_options or {}).items()}


def _check_names(given: Mapping[str, str]) -> None:
    for name in given:
        if name not in NAMES and not name.startswith(STORE_PREFIX):
            near = ["store"] if name == "path" else difflib.get_close_matches(name, NAMES, 1)
            advice = f"did you mean {near[0]}?" if near else f"the options are {', '.join(NAMES)} and {STORE_PREFIX}*"
            raise ReadError(f"{name}: no such option; {advice}")


def _store_options(given: Mapping[str, str]) -> dict[str, str]:
    """Return the store's options in upper case: Spark loses the case of option names."""
    named = {
        name.removeprefix(STORE_PREFIX).upper(): value for name, value in given.items() if name.startswith(STORE_PREFIX)
    }
    return with_environment(named, os.environ, given.get("store", ""))


def _optional_names(option: str, given: Mapping[str, str]) -> tuple[str, ...] | None:
    text = given.get(option)
    return None if text is None else parse_names(option, text)


def parse_names(option: str, text: str) -> tuple[str, ...]:
    """Return a list of names: separated by commas, or a JSON list where a name contains a comma.

    Raises:
        ReadError: it is not such a list, or it is empty.
    """
    names = [part.strip() for part in text.split(",")]
    if text.lstrip().startswith("["):
        try:
            names = msgspec.json.decode(text, type=list[str])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise ReadError(f'{option}: expected names such as a, b or a JSON list ["a", "b"]; got {text!r}') from None
    if not names or not all(names):
        raise ReadError(f"{option}: expected one name or more, separated by commas; got {text!r}")
    return tuple(names)


def _moment(option: str, given: Mapping[str, str]) -> datetime | None:
    text = given.get(option)
    return None if text is None else parse_moment(option, text)


def _count(option: str, given: Mapping[str, str]) -> int | None:
    text = given.get(option)
    if text is None:
        return None
    try:
        count = int(text.replace("_", ""))
    except ValueError:
        count = 0
    if count < 1:
        raise ReadError(f"{option}: expected a number of at least 1; got {text!r}")
    return count


def _truth(option: str, given: Mapping[str, str], *, default: bool) -> bool:
    text = given.get(option, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise ReadError(f"{option}: expected true or false; got {given[option]!r}")
    return text == "true"

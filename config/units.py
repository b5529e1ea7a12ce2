"""Durations, sizes, rates, addresses and URIs of stores, read and written the way people write them: 250ms, 16GiB."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable, Mapping
from datetime import time
from fractions import Fraction
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import msgspec
from msgspec import Meta

_DURATION_UNITS = {
    "ns": Fraction(1, 10**9),
    "us": Fraction(1, 10**6),
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "m": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(86400),
}
"""Seconds in each unit."""
_SIZE_UNITS = {
    "B": 1,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
}
YEAR_S = 365 * 86_400.0
_LONG_UNITS = (("years", YEAR_S), ("days", 86_400.0), ("hours", 3600.0), ("minutes", 60.0))
_WRITTEN_SIZE_UNITS = ("TiB", "GiB", "MiB", "KiB")

WINDOW_PATTERN = r"((?:[01][0-9]|2[0-3]):[0-5][0-9])-((?:[01][0-9]|2[0-3]):[0-5][0-9]|24:00)"
_WINDOW = re.compile(WINDOW_PATTERN)
_NUMBER = r"[0-9]{1,19}(?:\.[0-9]{1,9})?"
DURATION_PATTERN = rf"(?:{_NUMBER}(?:d|h|ms|us|ns|m|s))+"
SIZE_PATTERN = rf"{_NUMBER} ?(?:B|[KMGT]iB|[kKMGT]B)"
RATE_PATTERN = rf"{SIZE_PATTERN}/s"
SHARE_PATTERN = r"[0-9]{1,3}(?:\.[0-9]{1,4})? ?%"
_DURATION = re.compile(DURATION_PATTERN)
_DURATION_PART = re.compile(rf"({_NUMBER})(d|h|ms|us|ns|m|s)")
_SIZE = re.compile(rf"({_NUMBER}) ?([a-zA-Z]+)")
_MEASURE = re.compile(rf"({_NUMBER}) *([a-zA-Zµ]*)")
_UNIT_SPELLINGS = {
    "sec": "s",
    "second": "s",
    "min": "m",
    "minute": "m",
    "hour": "h",
    "hr": "h",
    "day": "d",
    "milli": "ms",
    "msec": "ms",
    "µ": "us",
}
"""Other spellings of units, without the s of the plural."""
DURATION_NS_MAX = 36_525 * 86_400 * 10**9
"""Longest duration: a hundred years. A longer one is a mistake in typing."""
SIZE_BYTES_MAX = 1 << 60
PORT_MAX = 65_535
UNIX_PATH_BYTES_MAX = 107
"""Bytes of a path that fit into sockaddr_un with the zero after it (unix(7))."""
_TEXT_SHOWN_MAX = 80
_CREDENTIALS = re.compile(r"(?<=://)[^/\s]*@")


_ALL = "*"
"""Host of all addresses of the machine, of IPv4 and IPv6."""
_LOOPBACK_OF = {_ALL: "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - looked up, not bound


class Address(NamedTuple):
    """Address of a listener. Port 0 means any free port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def to_resolve(self) -> str | None:
        """Return the host as the resolver takes it: None for all addresses of both families."""
        return None if self.host == _ALL else self.host

    @property
    def from_here(self) -> Address:
        """Return the address at which programs of this machine reach it: for all addresses, the loopback's."""
        return self._replace(host=_LOOPBACK_OF.get(self.host, self.host))

    @property
    def is_loopback(self) -> bool:
        """Return whether only this machine can reach it. Host names other than ``localhost`` count as reachable from
        elsewhere."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


class UnixSocket(NamedTuple):
    """Unix socket of a listener. Only processes of this machine that may write to the file reach it."""

    path: str

    def __str__(self) -> str:
        return f"unix:{self.path}"

    @property
    def is_loopback(self) -> bool:
        """Return True: only processes of this machine reach a unix socket."""
        return True


def quoted(text: str) -> str:
    """Return a text as error messages show it: in double quotes, cut when it is long, and a URL without the user name
    and password in it."""
    text = _CREDENTIALS.sub("...@", text)
    return json.dumps(text if len(text) <= _TEXT_SHOWN_MAX else f"{text[:_TEXT_SHOWN_MAX]}...", ensure_ascii=False)


def parse_duration_ns(text: str) -> int:
    """Return the nanoseconds of ``250ms``, ``10s`` or ``1h30m``. ``0`` needs no unit. ``ValueError`` for any other
    text."""
    text = text.strip()
    if text == "0":
        return 0
    parts = _DURATION_PART.findall(text) if _DURATION.fullmatch(text) else []
    units = [_DURATION_UNITS[unit] for _, unit in parts]
    if not parts or any(after >= before for before, after in pairwise(units)):
        raise ValueError(f"expected a duration such as 250ms, 10s or 1h30m, got {quoted(text)}{_meant_duration(text)}")
    nanoseconds = sum(Fraction(number) * unit for (number, _), unit in zip(parts, units, strict=True)) * 10**9
    if nanoseconds > DURATION_NS_MAX:
        raise ValueError(f"expected a duration of at most a hundred years, got {quoted(text)}")
    return round(nanoseconds)


def parse_duration(text: str) -> float:
    """Return the seconds of a duration (see ``parse_duration_ns``)."""
    return parse_duration_ns(text) / 10**9


def format_duration(seconds: float) -> str:
    """Return the shortest exact way to write a duration, to the nanosecond: ``1h30m``, ``250ms``, ``0s``."""
    rest = round(Fraction(seconds) * 10**9)
    if rest < 0:
        raise ValueError(f"a duration is not negative, got {seconds}")
    parts = []
    for unit in ("d", "h", "m", "s", "ms", "us", "ns"):
        count, rest = divmod(rest, int(_DURATION_UNITS[unit] * 10**9))
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def parse_size(text: str) -> int:
    """Return the bytes of ``64MiB``, ``16GiB`` or ``10MB``. ``0`` needs no unit. ``ValueError`` for any other text and
    for fractions of a byte."""
    text = text.strip()
    if text == "0":
        return 0
    match = _SIZE.fullmatch(text)
    if match is None or match[2] not in _SIZE_UNITS:
        raise ValueError(f"expected a size such as 64KiB, 16MiB or 2GiB, got {quoted(text)}{_meant_size(text)}")
    size = Fraction(match[1]) * _SIZE_UNITS[match[2]]
    if size.denominator != 1 or size > SIZE_BYTES_MAX:
        raise ValueError(f"expected a whole number of bytes, at most 1 EiB, got {quoted(text)}")
    return int(size)


def parse_rate(text: str) -> int:
    """Return the bytes a second of ``64KiB/s`` or ``1MB/s``. ``ValueError`` for any other text."""
    size, slash, second = text.strip().partition("/")
    try:
        if not slash or second.strip() != "s":
            raise ValueError
        return parse_size(size)
    except ValueError:
        raise ValueError(f"expected a rate such as 64KiB/s or 1MB/s, got {quoted(text)}") from None


def format_rate(rate: int) -> str:
    """Return the shortest exact way to write a rate: ``64KiB/s``."""
    return f"{format_size(rate)}/s"


def parse_share(text: str) -> float:
    """Return the part of a whole, 0 to 1, of ``25%``. ``ValueError`` for any other text and for more than ``100%``."""
    text = text.strip()
    if re.fullmatch(SHARE_PATTERN, text) is None:
        meant = f". Write the unit: {text}%" if re.fullmatch(r"[0-9]{1,3}", text) else ""
        raise ValueError(f"expected a share such as 25%, got {quoted(text)}{meant}")
    share = float(Fraction(text.rstrip("% ")) / 100)
    if share > 1:
        raise ValueError(f"expected a share of at most 100%, got {quoted(text)}")
    return share


def format_share(share: float) -> str:
    """Return the shortest exact way to write a share: ``25%``."""
    return f"{round(share * 100, 4):g}%"


def parse_window(text: str) -> tuple[time, time]:
    """Return the begin and end of a window of local time such as ``01:00-05:00``. ``24:00`` is the day's end, as
    ``00:00`` is. ``ValueError`` for any other text."""
    match = _WINDOW.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"expected a window such as 01:00-05:00, got {quoted(text)}")
    begin, end = (time(0) if each == "24:00" else time.fromisoformat(each) for each in match.groups())
    return begin, end


def _meant_size(text: str) -> str:
    """Return a hint for a number with another spelling of a unit, or without one."""
    match = _MEASURE.fullmatch(text.replace(",", ".") if text.count(",") == 1 else text)
    if match is None:
        return ""
    letters = match[2].lower()
    if not letters:
        return f". Write the unit, such as {match[1]}MiB"
    spelt = {short.lower(): unit for unit in reversed(_SIZE_UNITS) for short in (unit, unit[0], unit[:2])}
    unit = (spelt | {"byte": "B", "bytes": "B"}).get(letters)
    return f". Did you mean {match[1]}{unit}?" if unit else ""


def _meant_duration(text: str) -> str:
    """Return a hint for a number with another spelling of a unit, or without one."""
    match = _MEASURE.fullmatch(text)
    if match is None:
        return ""
    letters = match[2].lower()
    if not letters:
        return f". Write the unit, such as {match[1]}ms, {match[1]}s, {match[1]}h or {match[1]}d"
    unit = _UNIT_SPELLINGS.get(letters.rstrip("s"), letters)
    return f". Did you mean {match[1]}{unit}?" if unit in _DURATION_UNITS else ""


def format_size(size: int) -> str:
    """Return the shortest exact way to write a number of bytes: ``16GiB``, ``1500B``."""
    if size < 0:
        raise ValueError(f"a size is not negative, got {size}")
    for unit in _WRITTEN_SIZE_UNITS:
        if size and size % _SIZE_UNITS[unit] == 0:
            return f"{size // _SIZE_UNITS[unit]}{unit}"
    return f"{size}B"


def approximate_size(size: float) -> str:
    """Return a number of bytes for people, to three digits: ``1.53 GiB``."""
    for unit in _WRITTEN_SIZE_UNITS:
        if (amount := size / _SIZE_UNITS[unit]) >= 1:
            return f"{amount:.0f} {unit}" if amount >= 100 else f"{amount:.3g} {unit}"
    return f"{size:.0f} B"


def approximate_duration(seconds: float) -> str:
    """Return a duration for people, to three digits or so: ``12.5 hours``, ``40 seconds``."""
    for unit, unit_s in _LONG_UNITS:
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.1f} {unit}"
    return f"{seconds:.0f} {'second' if round(seconds) == 1 else 'seconds'}"


def parse_bind(text: str) -> Address:
    """Return the host and port of ``127.0.0.1:1883``, ``[::1]:1883`` or ``localhost:0``. ``ValueError`` otherwise."""
    host, colon, port = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    digits = port.isascii() and port.isdecimal()
    if not colon or not host or any(c.isspace() for c in host) or not digits:
        raise ValueError(f"expected host:port such as 127.0.0.1:1883 or [::1]:1883, got {quoted(text)}")
    if len(port) > 5 or int(port) > PORT_MAX:
        raise ValueError(f"expected host:port with a port of at most {PORT_MAX}, got {quoted(text)}")
    return Address(host, int(port))


def parse_listen(text: str) -> Address | UnixSocket:
    """Return an address as ``parse_bind`` does, or the path of ``unix:/run/weft.sock``. ``ValueError`` otherwise."""
    scheme, colon, path = text.strip().partition(":")
    if colon and scheme == "unix":
        if not path or "\0" in path or len(path.encode()) > UNIX_PATH_BYTES_MAX:
            raise ValueError(f"expected unix: and a path of at most {UNIX_PATH_BYTES_MAX} bytes, got {quoted(text)}")
        return UnixSocket(path)
    return parse_bind(text)


BUCKETS = {
    "s3": "Amazon S3, or a service that speaks its protocol",
    "gs": "Google Cloud Storage",
    "az": "Azure Blob Storage",
}
"""Scheme of a store's URI -> the service that keeps the store."""
WRITTEN = "s3://bucket/prefix, gs://bucket/prefix or az://container/prefix"
"""URIs of stores in buckets, for errors."""


def is_bucket(uri: str) -> bool:
    """Return whether a store or table at ``uri`` is in a bucket; a container of Azure is one."""
    scheme, separator, _ = uri.partition("://")
    return bool(separator) and scheme in BUCKETS


def kind_of(uri: str) -> str:
    """Return the kind of a store by its URI: the service, or a folder."""
    scheme = uri.partition("://")[0]
    return BUCKETS.get(scheme, "this process's memory" if scheme == "memory" else "a folder of this machine")


# Types of the settings with their units, and the base class of sections.

Duration = Annotated[float, Meta(extra_json_schema={"x-unit": "duration"})]
"""Seconds."""
Size = Annotated[int, Meta(extra_json_schema={"x-unit": "size"})]
"""Bytes."""
Rate = Annotated[int, Meta(ge=1, extra_json_schema={"x-unit": "rate"})]
"""Bytes a second."""
Share = Annotated[float, Meta(extra_json_schema={"x-unit": "share"})]
"""Part of a whole, 0 to 1."""
Windows = Annotated[tuple[str, ...], Meta(min_length=1, max_length=16, extra_json_schema={"x-unit": "windows"})]
"""Windows of local time; ``config.units.parse_window`` parses one."""
Zone = Annotated[str, Meta(extra_json_schema={"x-unit": "zone"})]
"""Name of a time zone of the IANA database."""
Count = Annotated[int, Meta(ge=1)]
Bind = Annotated[str, Meta(extra_json_schema={"x-unit": "bind"})]
"""``host:port``; ``config.units.parse_bind`` parses it."""
Path = Annotated[str, Meta(min_length=1, extra_json_schema={"x-unit": "path"})]
Store = Annotated[str, Meta(min_length=1, extra_json_schema={"x-unit": "store"})]
Filters = Annotated[tuple[str, ...], Meta(min_length=1, max_length=256, extra_json_schema={"x-unit": "filters"})]
Urls = Annotated[tuple[str, ...], Meta(min_length=1, max_length=64, extra_json_schema={"x-unit": "urls"})]
AdvertisedUrls = Annotated[
    tuple[str, ...], Meta(min_length=1, max_length=64, extra_json_schema={"x-unit": "advertised_urls"})
]
BrokerUrls = Annotated[tuple[str, ...], Meta(min_length=1, max_length=16, extra_json_schema={"x-unit": "broker_urls"})]
Listen = Annotated[str, Meta(extra_json_schema={"x-unit": "listen"})]
"""``host:port`` or ``unix:/path``; ``config.units.parse_listen`` parses it."""
Networks = Annotated[tuple[str, ...], Meta(min_length=1, max_length=64, extra_json_schema={"x-unit": "networks"})]
Hosts = Annotated[tuple[str, ...], Meta(max_length=64, extra_json_schema={"x-unit": "hosts"})]
"""Host names without port, in lower case."""
Expression = Annotated[str, Meta(min_length=1, extra_json_schema={"x-unit": "expression"})]
"""Text of an expression. In YAML it may also look like a number or a word for true or false: ``where: true``."""
Anonymous = Literal["loopback", "allowed_beyond_loopback"]
RefusedPublish = Literal["close", "acknowledge"]
ListenerAnonymous = Literal["never", "loopback", "allowed_beyond_loopback"]

MiB = 1 << 20


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base class of sections: immutable, and unknown keys are errors."""

    renamed: ClassVar[Mapping[str, str]] = {}
    """Names that settings of this section had in earlier releases -> their present names. Both are read."""
    removed: ClassVar[Mapping[str, str]] = {}
    """Names of former settings of this section -> what took their place and what to write, for the error."""

    def with_its_file(self, parse: Callable[..., Any]) -> Self:  # noqa: ARG002
        """Return the section with the settings that a file of its own has; most have none. Blocks.

        Args:
            parse: ``config.load.parse``.

        Raises:
            ValueError, ConfigError: the file that `file` names cannot be used.
        """
        return self


class OneOf(Section, frozen=True, kw_only=True):
    """Base class of sections of which exactly one setting is given. All of them are optional in the model."""

    noun: ClassVar[str] = "setting"
    """Word for a setting of this section in error messages."""
    beside: ClassVar[tuple[str, ...]] = ()
    """Settings allowed beside the one that is given."""

    @property
    def chosen(self) -> tuple[str, Any]:
        """Return the setting that is given: its name as in YAML, and its value."""
        for name, encoded in zip(self.__struct_fields__, self.__struct_encode_fields__, strict=True):
            value = getattr(self, name)
            if value is not None and encoded not in self.beside:
                return encoded, value
        raise LookupError(f"this {type(self).__name__} has no {self.noun}")

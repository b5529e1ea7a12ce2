"""Named hubs of a user: ``weft login`` writes their file, which has tokens and is for its owner alone."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from weft.protocols.lane import NAME_RULE, valid_name
from weft.storage.filesystem import read_private_file, replace_private_file

FILE_BYTES_MAX = 1 << 20
# No current login, as other tools have: a command that deletes would go where the last one went.
HUBS_MAX = 1000
FILE = os.path.join("weft", "hubs.json")
HUB_VARIABLE, TOKEN_VARIABLE, TOKEN_FILE_VARIABLE = "WEFT_HUB", "WEFT_TOKEN", "WEFT_TOKEN_FILE"


class LoginsUnusable(Exception):
    """The file is damaged, too large, or open to others. The message says what to do."""


class Login(msgspec.Struct, frozen=True, omit_defaults=True):
    """A hub with a name."""

    url: str
    token: str | None = None
    ca_file: str | None = None
    """PEM file of the authorities that the hub's certificate is trusted by; None for the system's."""
    certificate: str | None = None
    """PEM file of the client certificate, in the place of a token; ``key`` has its key."""
    key: str | None = None


class _File(msgspec.Struct, frozen=True):
    hubs: dict[str, Login]


def path() -> str:
    """Return the path of the user's file, below ``XDG_CONFIG_HOME`` or ``~/.config``."""
    return os.path.join(os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config"), FILE)


def read() -> dict[str, Login]:
    """Return the user's hubs by their names.

    Raises:
        LoginsUnusable: the file cannot be used.
    """
    place = path()
    try:
        data = read_private_file(place, FILE_BYTES_MAX)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise LoginsUnusable(f"{place}: {error.strerror}") from None
    try:
        if len(data) > FILE_BYTES_MAX:
            raise ValueError(f"it has more than {FILE_BYTES_MAX} bytes")
        hubs = msgspec.json.decode(data, type=_File).hubs
        for name, login in hubs.items():
            if not valid_name(name):
                raise ValueError(f"{name!r} is not a name of a hub")
            check_url(login.url)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise LoginsUnusable(f"{place} cannot be used ({error}). Remove it, then run `weft login` again") from None
    return hubs


def write(hubs: Mapping[str, Login]) -> None:
    """Replace the user's hubs, durably and in one step.

    Raises:
        LoginsUnusable: there are too many.
        OSError: the file cannot be written; the earlier one remains.
    """
    if len(hubs) > HUBS_MAX:
        raise LoginsUnusable(f"{path()} has {HUBS_MAX} hubs, its limit. Remove one with `weft login NAME --forget`")
    os.makedirs(os.path.dirname(path()), mode=0o700, exist_ok=True)
    replace_private_file(path(), msgspec.json.format(msgspec.json.encode(_File(dict(hubs)))) + b"\n")


def check_name(name: str) -> str:
    """Return a name for a hub. ``ValueError`` says what is wrong with it."""
    if not valid_name(name):
        raise ValueError(f"{name!r} is not a name for a hub: expected {NAME_RULE}")
    return name


def check_url(url: str) -> str:
    """Return a hub's URL without a slash at its end. ``ValueError`` says what is wrong with it, and repeats none with a
    password."""
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise ValueError("the URL contains a user or a password. Remove it, and pass the token separately")
    if parts.scheme not in ("http", "https") or not parts.hostname or not url.isprintable() or " " in url:
        raise ValueError(f"{url!r} is not a URL of a hub: write https://hub.example.com")
    if parts.query or parts.fragment:
        raise ValueError(f"{url!r} has more than the URL of a hub: write https://hub.example.com")
    _ = parts.port  # raises for one that is no number
    return url.rstrip("/")


class Place(NamedTuple):
    """A hub, and what opens it."""

    url: str
    token: str | None
    token_file: str | None
    ca_file: str | None
    certificate: str | None = None
    key: str | None = None


def find(hub: str, token_file: str | None = None) -> Place:
    """Return the hub of a URL, or of a login's name.

    The token is that of ``token_file``; else that of the login, which a URL finds as well; else that of the environment
    (``WEFT_TOKEN_FILE`` or ``WEFT_TOKEN``), unless the login has a certificate.

    Raises:
        ValueError: it is neither.
        LoginsUnusable: the file of the logins cannot be used.
    """
    if "://" in hub:
        url = check_url(hub)
        login = next((each for each in read().values() if each.url == url), Login(url))
    else:
        known = read()
        if hub not in known:
            raise ValueError(f"{hub!r} is neither a URL nor a login of {path()}: `weft login {hub} URL` makes one")
        login = known[hub]
    tls = login.ca_file, login.certificate, login.key
    if token_file is not None:
        return Place(login.url, None, token_file, *tls)
    if login.token is not None or login.certificate is not None:
        return Place(login.url, login.token, None, *tls)
    return Place(login.url, *of_environment(), *tls)


def of_environment() -> tuple[str | None, str | None]:
    """Return token and token file of the environment. ``ValueError`` if both are set."""
    token, token_file = (os.environ.get(name) or None for name in (TOKEN_VARIABLE, TOKEN_FILE_VARIABLE))
    if token is not None and token_file is not None:
        raise ValueError(f"{TOKEN_VARIABLE} and {TOKEN_FILE_VARIABLE} are both set: unset one of them")
    return token, token_file

"""The hub of a read: its URLs, a token, and certificate authorities."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from spark_sinks.errors import ReadError

TOKEN_VARIABLE = "WEFT_TOKEN"  # noqa: S105  (its name)
TOKEN_CHARACTERS_MAX = 4096
CA_CHARACTERS_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class HubAccess:
    """A hub, as the driver passes it on to tasks."""

    urls: tuple[str, ...]
    """URLs of its nodes, tried in turn."""
    token: str | None = field(default=None, repr=False)
    ca: str | None = field(default=None, repr=False)
    """Certificate authorities in PEM; None for the system's."""


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
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
            raise ReadError(f"hub: expected http://host:port or https://host:port without a password; got "
                            f"{parts.scheme}://{parts.hostname}")  # fmt: skip
    if not urls:
        raise ReadError("hub: expected the URL of at least one node, such as http://127.0.0.1:8090")
    text = _text("token_file", given.get("token_file"), TOKEN_CHARACTERS_MAX) or os.environ.get(TOKEN_VARIABLE, "")
    words = text.split()
    if len(words) > 1 or not text.isascii():
        raise ReadError("token_file: expected one token on one line; write it again")
    return HubAccess(urls, words[0] if words else None, _text("ca_file", given.get("ca_file"), CA_CHARACTERS_MAX))


def _text(option: str, path: str | None, most: int) -> str | None:
    if path is None:
        return None
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(most + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise ReadError(f"{option}: {path} cannot be read: {error}") from None
    if len(text) > most or not text.strip():
        raise ReadError(f"{option}: {path} is empty, or has more than {most} characters")
    return text

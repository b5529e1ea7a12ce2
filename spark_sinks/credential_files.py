"""URLs of a hub, and files of tokens and certificate authorities: for sinks, and for reads through a hub."""

from __future__ import annotations

import os
from collections.abc import Sequence
from urllib.parse import urlsplit

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

"""The hub of a read: its URLs, a token, and certificate authorities."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from spark_sinks.credential_files import (
    CA_CHARACTERS_MAX,
    TOKEN_CHARACTERS_MAX,
    TOKEN_VARIABLE,
    check_urls,
    one_token,
    read_text,
)
from spark_sinks.errors import ReadError


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

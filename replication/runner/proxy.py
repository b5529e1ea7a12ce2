"""The HTTP proxy of a link, and the credentials for it."""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass

from weft.config.machine import why_unreadable

PASSWORD_BYTES_MAX = 4096


class ProxyUnusable(Exception):
    """The password for the proxy cannot be read; the text has the reason and the remedy."""


@dataclass(frozen=True)
class LinkProxy:
    """The proxy of a link. Without a URL, that of the environment (``https_proxy``, ``http_proxy``) is used."""

    url: str | None = None
    username: str | None = None
    password_file: str | None = None
    password_env: str | None = None

    def headers(self) -> dict[str, str] | None:
        """Return the headers for the proxy, with user name and password (RFC 7617). Blocks; called before each attempt,
        so that they can change.

        Raises:
            ProxyUnusable: the password cannot be read.
        """
        if self.url is None or self.username is None:
            return None
        pair = f"{self.username}:{self._password()}".encode()
        return {"Proxy-Authorization": f"Basic {base64.b64encode(pair).decode()}"}

    def _password(self) -> str:
        if self.password_env is not None:
            value = os.environ.get(self.password_env)
            if value is None:
                raise ProxyUnusable(f"the node has no environment variable {self.password_env}. Set it where it starts")
            return value
        if self.password_file is None:
            return ""
        try:
            with open(self.password_file, "rb") as file:
                data = file.read(PASSWORD_BYTES_MAX + 1)
        except OSError as error:
            raise ProxyUnusable(f"proxy_password_file {self.password_file}: {why_unreadable(error)}") from None
        text = data.decode("utf-8", "replace").strip("\r\n")
        if not text or len(data) > PASSWORD_BYTES_MAX or "\n" in text or "\ufffd" in text:
            raise ProxyUnusable(f"proxy_password_file {self.password_file}: expected one password on one line")
        return text

"""Address of a PostgreSQL database: a JDBC URL without a password, and a connection made from it."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from spark_sinks.errors import SinkError

if TYPE_CHECKING:
    from psycopg import Connection

SCHEMES = ("postgresql", "postgres")
PORT = 5432
PASSWORD_BYTES_MAX = 4096
BOUNDS = {
    "connect_timeout": "10",
    # Milliseconds after which a connection without answers is closed; the kernel's own limit is hours.
    "tcp_user_timeout": "60000",
    "application_name": "weft",
    # A statement that waits longer for another transaction fails, and the batch with it.
    "options": "-c lock_timeout=60s",
}
"""Settings of libpq that a URL may override. Without them, a lost server would block a query for hours."""
_PASSWORDS = "the environment variable PGPASSWORD of the driver, in its ~/.pgpass, or in password_file"


def check_url(url: str) -> str:
    """Return libpq's form of a URL such as ``jdbc:postgresql://db.example.com:5432/plant?user=weft``.

    Raises:
        SinkError: the URL is of another database, or has a password in it. The message never shows the password.
    """
    address = url.removeprefix("jdbc:")
    try:
        parts = urlsplit(address)
        secret = parts.password is not None or any("password" in name.lower() for name, _ in parse_qsl(parts.query))
    except ValueError:
        raise SinkError("url: it cannot be read; expected jdbc:postgresql://HOST:PORT/DATABASE?user=NAME") from None
    if parts.scheme not in SCHEMES:
        # Only the scheme is shown: for any database, the rest may hold a password.
        raise SinkError(
            f"url: expected jdbc:postgresql://HOST:PORT/DATABASE; got one that begins with {parts.scheme or '?'!r}. "
            "For other databases use Spark's own JDBC writer (docs/how-to/from-spark-to-postgresql.md)"
        )
    if secret:
        raise SinkError(f"url: it has a password in it; take it away, and put the password in {_PASSWORDS}")
    return address


def shown(url: str) -> str:
    """Return host, port and database of a checked URL, for messages."""
    host, _, path = url.removeprefix("jdbc:").partition("://")[2].partition("?")[0].partition("/")
    return f"{host.rpartition('@')[2] or 'localhost'}/{path}"


def connect(url: str, password_file: str | None) -> Connection:
    """Return a connection; transactions begin with the first statement.

    Raises:
        SinkError: psycopg is not installed, the password file cannot be read, or the database refuses.
    """
    try:
        import psycopg
    except ImportError:
        raise SinkError("JdbcSink needs psycopg on the driver: pip install 'weft-fabric[postgresql]'") from None
    options = dict(BOUNDS)
    try:
        given = psycopg.conninfo.conninfo_to_dict(check_url(url))
        options |= {name: str(value) for name, value in given.items()}
        if password_file is not None:
            options["password"] = _password(password_file)
        return psycopg.connect(**options)  # type: ignore[arg-type]
    except psycopg.ProgrammingError as error:
        raise SinkError(f"url: {error}".strip() + "; parameters after the ? have libpq's names") from None
    except psycopg.OperationalError as error:
        raise SinkError(
            f"PostgreSQL at {shown(url)} refused or did not answer: {error}. Check the address, the user, and that the "
            f"password is in {_PASSWORDS}"
        ) from None


def _password(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(PASSWORD_BYTES_MAX)
    except (OSError, UnicodeDecodeError) as error:
        raise SinkError(f"password_file: {path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    return text.splitlines()[0] if text else ""

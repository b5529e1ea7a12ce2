"""The two ends of a ``StreamSink``: its target stream and the source of its rows."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spark_sinks.credential_files import (
    CA_CHARACTERS_MAX,
    TOKEN_CHARACTERS_MAX,
    TOKEN_VARIABLE,
    check_urls,
    one_token,
    read_text,
)
from spark_sinks.errors import ReadError, SinkError
from spark_sinks.source.options import ReadOptions, parse_options
from spark_sinks.source.store_options import with_environment
from weft.protocols.lane import NAME_RULE, valid_name


@dataclass(frozen=True)
class TargetStream:
    """Stream of a hub to write into.

    Raises:
        SinkError: an argument is not valid.
    """

    hub: str | Sequence[str]
    """URL or URLs of the hub's nodes, ``http(s)://host:port``."""
    stream: str
    store: str | os.PathLike[str]
    """Root of the hub's store, in which a start looks up the last record of each lane."""
    tenant: str = "default"
    token_file: str | os.PathLike[str] | None = None
    """File with a token of scope ``edge`` for ``spark-NAME``; without it the variable ``WEFT_TOKEN`` is used, if it is
    set. The driver reads it for each micro-batch and sends the token along to its tasks."""
    ca_file: str | os.PathLike[str] | None = None
    """Certificate authorities of the hub in PEM; by default the system's."""
    store_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """For the object store: ``{"AWS_REGION": ...}``."""

    def __post_init__(self) -> None:
        """Check the arguments."""
        try:
            check_urls(self.urls)
        except ValueError as error:
            raise SinkError(str(error)) from None
        for argument, name in (("stream", self.stream), ("tenant", self.tenant)):
            if not valid_name(name):
                raise SinkError(f"{argument}: expected {NAME_RULE}; got {name!r}")

    @property
    def urls(self) -> tuple[str, ...]:
        """Return the nodes of the hub, to be tried in turn."""
        return (self.hub,) if isinstance(self.hub, str) else tuple(self.hub)

    def token(self) -> str | None:
        """Read the token of the file or of the environment; None without either."""
        text, where = _text("token_file", self.token_file, TOKEN_CHARACTERS_MAX), f"token_file {self.token_file}"
        if text is None:
            text, where = os.environ.get(TOKEN_VARIABLE), TOKEN_VARIABLE
        if text is None:
            return None
        try:
            return one_token(text)
        except ValueError as error:
            raise SinkError(f"{where}: {error}") from None

    def ca(self) -> str | None:
        """Read the certificate authorities; None trusts the system's."""
        return _text("ca_file", self.ca_file, CA_CHARACTERS_MAX)

    def all_store_options(self) -> tuple[tuple[str, str], ...]:
        """Return the options of the store with those of this process's environment, sorted."""
        options = with_environment(dict(self.store_options), os.environ, os.fspath(self.store))
        return tuple(sorted(options.items()))


@dataclass(frozen=True)
class SourceStream:
    """Stream whose records cause the rows.

    With ``store`` a start compares what the target has with the end of the source, and refuses a source that was
    restored to an earlier state.

    Raises:
        SinkError: an argument is not valid.
    """

    stream: str
    """Part of the identity of the lanes: a query over another source has lanes of its own."""
    store: str | os.PathLike[str] | None = None
    """Root of the store of the hub that has the stream."""
    tenant: str = "default"

    def __post_init__(self) -> None:
        """Check the arguments."""
        _ = self.log

    @property
    def log(self) -> ReadOptions | None:
        """Return what to read the source's log with; None without its store."""
        if self.store is None:
            return None
        try:
            return parse_options({"store": os.fspath(self.store), "stream": self.stream, "tenant": self.tenant})
        except ReadError as error:
            raise SinkError(f"source: {error}") from None


def _text(argument: str, path: str | os.PathLike[str] | None, most: int) -> str | None:
    try:
        return read_text(path, most)
    except ValueError as error:
        raise SinkError(f"{argument} {error}") from None

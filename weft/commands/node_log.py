"""Parts of the commands that inspect an edge node's log: the log, its streams, and how much of it is durable."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from weft.commands.common import ExistingPath, load_edge
from weft.config.machine import why_denied
from weft.config.units import parse_duration_ns
from weft.edge_node.check.streams import Flow, intake_patterns, streams_of
from weft.edge_node.inspect.view import Durability, LogDirectory, NoLog
from weft.edge_node.streams import STATE_STREAMS
from weft.output import Failed, Refused
from weft.protocols.errors import UnsupportedVersion
from weft.protocols.lane import format_log_id
from weft.text.edge_status import clock_trouble

if TYPE_CHECKING:
    from weft.config.models import EdgeConfig

target_argument = click.argument("target", metavar="CONFIG|DIR", type=ExistingPath())
_DURATION = re.compile(r"-?\d[\d.]*[a-z].*")


@dataclass(frozen=True)
class NodeLog:
    """The log of a node, named by its configuration or by its data_dir."""

    directory: str
    config: EdgeConfig | None
    """Configuration; None if the data_dir was named: topic patterns, budget and the node's address are then unknown."""

    @classmethod
    def of(cls, path: str) -> NodeLog:
        """Return the target for a path of the command line. ``Refused`` when the configuration is wrong."""
        if os.path.isdir(path):
            return cls(path, None)
        config = load_edge(path)
        return cls(config.data_dir, config)

    def log(self) -> LogDirectory:
        """Return the files."""
        return LogDirectory(self.directory)

    def durability(self) -> Durability:
        """Return how much of the log's end is durable and may be shown."""
        return Durability(self.directory, self._durable_ends if self.config and self.config.http else None)

    def patterns(self, *, thorough: bool = False) -> dict[str, tuple[str, ...]]:
        """Return the streams with their topic patterns; streams that no configuration names have none.

        Args:
            thorough: look for such streams in all of the log's newest segment.
        """
        known: dict[str, tuple[str, ...]] = {}
        if self.config is not None:
            flow = Flow(self.config)
            known = {name: flow.patterns(name) for name in streams_of(self.config)}
            known |= {name: patterns for name, patterns in intake_patterns(self.config).items() if name not in known}
        others = sorted(set(self.log().names(thorough=thorough).values()) - known.keys() - STATE_STREAMS)
        return known | dict.fromkeys(others, ())

    def wanted(self, names: Sequence[str]) -> Callable[[str], bool]:
        """Return a predicate for the named streams, or for all streams of devices. ``Refused`` when one does not
        exist."""
        if not names:
            return lambda name: name not in STATE_STREAMS
        known: Mapping[str, object] = self.config.streams if self.config is not None else {}
        for thorough in (False, True):
            if not known.keys() >= set(names):
                known = self.patterns(thorough=thorough)
        for name in names:
            if name not in known:
                raise Refused(f"there is no stream {name!r}; streams: {', '.join(known) or 'none'}")
        return frozenset(names).__contains__

    def status(self) -> dict[str, Any]:
        """Return the status that the running node reports. ``Failed`` when no node answers."""
        from weft.commands.running import get_status  # the client of hubs, which other commands do without

        if self.config is None:
            raise Failed("only its folder was named")
        if self.config.http is None:
            raise Failed("it has no status page: its configuration sets `http: null`")
        facts: dict[str, Any] = get_status(self.config.http.bind, "/status")
        if (facts.get("tenant"), facts.get("node")) != (self.config.tenant, self.config.node):
            raise Failed(f"another node answers at {self.config.http.bind}: {facts.get('tenant')}/{facts.get('node')}")
        return facts

    def clock_trouble(self) -> str | None:
        """Return the difference between the running node's clock and a hub's; None while it is small or unknown."""
        try:
            return clock_trouble(self.status()) if self.config and self.config.http else None
        except (Failed, KeyError, TypeError):
            return None

    def _durable_ends(self) -> Mapping[str, int] | None:
        log_id = self.log().log_id()
        try:
            facts = self.status()
            # The folder may be an older or foreign copy of the one that the node writes. ``durable_end`` is then about
            # other files.
            if log_id is None or facts["log_id"] != format_log_id(log_id):
                return None
            return {name: stream["durable_end"] for name, stream in facts["streams"].items()}
        except (Failed, KeyError, TypeError):
            return None


@contextmanager
def readable(target: NodeLog) -> Iterator[None]:
    """Turn an error of reading a log into a sentence."""
    try:
        yield
    except NoLog as error:
        raise Failed(str(error)) from None
    except PermissionError as error:
        path = str(error.filename or target.directory)
        raise Failed(f"{path}: {why_denied(path, 'read')}") from None
    except UnsupportedVersion as error:
        raise Failed(f"a later release of Weft wrote the log in {target.directory} ({error}): use that one") from None


def parse_since(option: str, text: str, now_ns: int) -> int:
    """Return the time, ns since 1970, of ``-10m`` or ``10m`` (ago), or of a time such as ``2026-11-20T07:00`` (UTC).

    Raises:
        Refused: it is neither.
    """
    try:
        if text == "0" or _DURATION.fullmatch(text):
            return now_ns - parse_duration_ns(text.removeprefix("-"))
        time = datetime.fromisoformat(text)
    except ValueError:
        raise Refused(
            f"{option}: expected a duration ago such as -10m, or a time such as 2026-11-20T07:00, got {text!r}"
        ) from None
    time = time if time.tzinfo else time.replace(tzinfo=UTC)
    return int(time.timestamp()) * 10**9 + time.microsecond * 1000

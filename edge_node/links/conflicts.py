"""Conflicts of identity: a hub refuses the node because another copy of its log has taken over.

Both copies would use the same numbers, and the hub keeps the records of the first one that brings them. So a refused
node stops acknowledging, as it does when its disk is full: devices keep their messages. It stops at its next start,
too, before any link is up. It resumes once the hub accepts a lane of the link again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping

import msgspec

from weft.replication.status import LinkStatus
from weft.storage.filesystem import FileSystem, write_atomically
from weft.storage.segment_log.sealed.disk import disk_of

logger = logging.getLogger(__name__)

FILE = "conflicts"
_DECODER = msgspec.json.Decoder(dict[str, str])


class Conflicts:
    """The conflicts of a node's links, kept across restarts. Event loop's thread; blocks on the disk at a change.

    Args:
        path: the file that keeps them.
        carried: link -> the numbers of the streams that it carries, for links with ``on_conflict: stop``.
        refuse: called for a stream with the reason why its records are refused; None when they are accepted.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        path: str,
        carried: Mapping[str, Iterable[int]],
        refuse: Callable[[int, str | None], None],
    ) -> None:
        self._filesystem = filesystem
        self._path = path
        self._carried = {link: frozenset(streams) for link, streams in carried.items()}
        self._refuse = refuse
        self._refused: dict[int, str] = {}
        self._told: set[str] = set()
        """Links with a log line that another one leads to the same hub."""
        self.reasons = {link: why for link, why in _read(filesystem, path).items() if link in self._carried}
        """Link -> reason why the node acknowledges nothing of the streams that it carries, and the remedy."""
        self._apply()

    def carry(self, carried: Mapping[str, Iterable[int]]) -> None:
        """Note that links carry other streams now. A removed link has no conflict."""
        self._carried = {link: frozenset(streams) for link, streams in carried.items()}
        self.reasons = {link: why for link, why in self.reasons.items() if link in self._carried}
        self._apply()

    def look(self, links: Iterable[LinkStatus]) -> None:
        """Note which links are in conflict now. A link that cannot connect keeps its state."""
        reasons, links = dict(self.reasons), list(links)
        for link in links:
            if link.name in self._carried:
                if link.conflict and not self._is_own(link, links):
                    reasons[link.name] = link.conflict
                elif link.conflict or link.is_taken:
                    reasons.pop(link.name, None)
        if reasons == self.reasons:
            return
        for name in reasons.keys() - self.reasons.keys():
            logger.error("link %s: devices get no acknowledgements: %s", name, reasons[name])
        for name in self.reasons.keys() - reasons.keys():
            logger.warning("link %s: the conflict is over: devices are acknowledged", name)
        self.reasons = reasons
        self._apply()
        try:
            self._write()
        except OSError as error:
            logger.warning("%s cannot be written (%s): after a restart the node acknowledges until a link is refused",
                           self._path, error)  # fmt: skip

    def _is_own(self, refused: LinkStatus, links: Iterable[LinkStatus]) -> bool:
        """Return whether another link of this node to the same hub has taken over, not a copy."""
        own = self._carried[refused.name]
        same = (link for link in links if link.is_taken and link.cluster_id == refused.cluster_id)
        other = next((link for link in same if own & self._carried.get(link.name, frozenset())), None)
        if other is None:
            return False
        refused.last_error = (
            f"links {refused.name} and {other.name} bring the same streams to the same hub, and take them from each "
            "other. Give one link all URLs of the hub, and remove the other link"
        )
        if refused.name not in self._told:
            self._told.add(refused.name)
            logger.error("%s", refused.last_error)
        return True

    def _apply(self) -> None:
        refused: dict[int, str] = {}
        for link, why in sorted(self.reasons.items()):
            for stream in self._carried[link]:
                refused.setdefault(stream, f"link {link}: {why}")
        for stream in self._refused.keys() | refused.keys():
            if self._refused.get(stream) != refused.get(stream):
                self._refuse(stream, refused.get(stream))
        self._refused = refused

    def _write(self) -> None:
        if self.reasons:
            self._filesystem.make_directory(os.path.dirname(self._path))
            write_atomically(self._filesystem, self._path, msgspec.json.encode(self.reasons))
        elif self._filesystem.exists(self._path):
            self._filesystem.remove(self._path)


def has_conflicts(data_dir: str) -> bool:
    """Return whether hubs refuse a stopped node's log, as far as its node has recorded."""
    return bool(_read(disk_of(data_dir), os.path.join(data_dir, "links", FILE)))


def _read(filesystem: FileSystem, path: str) -> dict[str, str]:
    try:
        return _DECODER.decode(filesystem.read(path))
    except (OSError, msgspec.MsgspecError):
        # Usually the file is missing. A damaged one counts as empty; a refused link reports the conflict again.
        return {}

"""Topics of Sparkplug B (Sparkplug 3.0, section 4): ``spBv1.0/GROUP/TYPE/NODE`` and ``.../DEVICE``."""

from __future__ import annotations

from typing import NamedTuple

NAMESPACE = b"spBv1.0"
NODE_MESSAGES = frozenset({b"NBIRTH", b"NDEATH", b"NDATA", b"NCMD"})
DEVICE_MESSAGES = frozenset({b"DBIRTH", b"DDEATH", b"DDATA", b"DCMD"})


class SparkplugTopic(NamedTuple):
    """Sender and kind of a message."""

    kind: bytes
    """``BIRTH``, ``DEATH``, ``DATA`` or ``CMD``."""
    node: bytes
    """``GROUP/NODE``: name of the edge node."""
    source: bytes
    """``GROUP/NODE`` or ``GROUP/NODE/DEVICE``: the owner of the metrics."""

    @property
    def is_node(self) -> bool:
        """Return whether the message is of the edge node itself, and not of a device."""
        return self.node == self.source


def parse_topic(topic: bytes) -> SparkplugTopic | None:
    """Return the parts of a topic; None for a topic of neither edge nodes nor devices, such as ``STATE`` of a host."""
    levels = topic.split(b"/")
    if levels[0] != NAMESPACE or not all(levels):
        return None
    if len(levels) == 4 and levels[2] in NODE_MESSAGES:
        node = source = b"/".join((levels[1], levels[3]))
    elif len(levels) == 5 and levels[2] in DEVICE_MESSAGES:
        node = b"/".join((levels[1], levels[3]))
        source = b"/".join((node, levels[4]))
    else:
        return None
    return SparkplugTopic(levels[2][1:], node, source)

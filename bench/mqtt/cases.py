"""The cases: what the load is, and what Weft should reach beside Mosquitto."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

SHAPES = ((10, 100), (100, 20), (1000, 5), (1000, 1), (5000, 1))
"""Connections, and how many unacknowledged messages each keeps in flight."""
FLEET = 5000
"""Connections of the fleet; each publishes once a second."""
RATES = (100, 1_000, 5_000, 10_000)
RATE_CONNECTIONS = (10, 100, 1_000)
UNKEPT = "live"
"""A topic prefix that no stream takes."""
IDLE = "idle"


@dataclass(frozen=True)
class Target:
    """A bound on one figure.

    Args:
        figure: ``rate_ratio`` and ``cpu_ratio`` are Weft's by Mosquitto's; other names are Weft's own figures.
        bound: the largest value allowed, or the smallest with ``at_least``.
        plus_fsync: the median time of one fsync, measured in the same run, is allowed on top.
    """

    figure: str
    bound: float
    at_least: bool = False
    plus_fsync: bool = False


@dataclass(frozen=True)
class Case:
    """One comparison. ``options`` are ``mqttload``'s; ``rate`` names the figure that the rate ratio is made of."""

    name: str
    group: str
    title: str
    options: dict[str, object]
    targets: tuple[Target, ...] = ()
    rate: str = "messages_per_s"

    @property
    def tls(self) -> bool:
        """Tell whether the connections are encrypted."""
        return "X" in self.options

    @property
    def fixed_rate(self) -> int | None:
        """Return the messages a second of an open loop; None in a closed one."""
        rate = self.options.get("r")
        return rate if isinstance(rate, int) else None


FLEET_CPU = Target("cpu_ratio", 1.3)
SHAPE_TARGETS: dict[str, tuple[Target, ...]] = {
    "qos1_10x100": (Target("rate_ratio", 3.0, at_least=True),),
    "qos1_100x20": (Target("rate_ratio", 3.0, at_least=True),),
    "qos1_1000x1": (FLEET_CPU,),
    "qos1_5000x1": (FLEET_CPU,),
    "qos0_10x100": (Target("rate_ratio", 1.5, at_least=True),),
    "qos2_10x100": (Target("rate_ratio", 1.0, at_least=True),),
}


def shapes(group: str, prefix: str, title: str, options: dict[str, object]) -> list[Case]:
    """Return the shapes of a fleet at one quality of service."""
    found = [
        Case(
            name := f"{prefix}_{connections}x{window}",
            group,
            f"{title}, {connections:,} x {window}",
            {**options, "c": connections, "w": window},
            SHAPE_TARGETS.get(name, ()),
        )
        for connections, window in SHAPES
    ]
    fleet = {**options, "c": FLEET, "r": FLEET}
    return [*found, Case(f"{prefix}_fleet", group, f"{title}, {FLEET:,} at 1/s each", fleet)]


def rate_targets(rate: int, connections: int) -> tuple[Target, ...]:
    """Return what is asked at a fixed rate."""
    if rate == 1_000:
        return (Target("cpu_ratio", 2.0), Target("ack_ms_p99", 10.0))
    if rate == 10_000:
        written = Target("write_amplification", 1.0)
        return (written, Target("ack_ms_p99", 5.0, plus_fsync=True)) if connections == 10 else (written,)
    return ()


def rates() -> list[Case]:
    """Return the fixed rates, at QoS 1."""
    return [
        Case(
            f"rate_{rate}_{connections}",
            "rates",
            f"QoS 1, {rate:,}/s over {connections:,}",
            {"q": 1, "c": connections, "r": rate},
            rate_targets(rate, connections),
        )
        for rate in RATES
        for connections in RATE_CONNECTIONS
    ]


def delivery() -> list[Case]:
    """Return MQTT 5 and what subscribers receive."""
    received = "received_per_s"
    fan_out: dict[str, object] = {"q": 0, "c": 1, "S": 100, "w": 50}
    no_less, most = (Target("rate_ratio", 1.0, at_least=True),), (Target("rate_ratio", 0.7, at_least=True),)
    return [
        Case(
            "v5",
            "delivery",
            "QoS 1 over MQTT 5, 10 x 100",
            {"q": 1, "c": 10, "w": 100, "V": 5},
            (Target("rate_ratio", 3.0, at_least=True),),
        ),
        Case("shared_topic", "delivery", "QoS 1 on one topic, 100 x 20", {"q": 1, "c": 100, "w": 20, "N": 1}),
        Case("one_to_one", "delivery", "1 to 1, QoS 1", {"q": 1, "c": 1, "S": 1, "w": 100}, no_less, received),
        Case("fan_out", "delivery", "fan-out 1 to 100, QoS 0, kept", fan_out, most, received),
        Case(
            "fan_out_live", "delivery", "fan-out 1 to 100, QoS 0, no stream", {**fan_out, "T": UNKEPT}, most, received
        ),
    ]


CASES: Sequence[Case] = (
    *shapes("shapes", "qos1", "QoS 1", {"q": 1}),
    *rates(),
    *shapes("qos0", "qos0", "QoS 0", {"q": 0}),
    *shapes("qos2", "qos2", "QoS 2", {"q": 2}),
    *shapes("tls", "tls", "QoS 1 over TLS", {"q": 1, "X": True}),
    *delivery(),
)
GROUPS = (*dict.fromkeys(case.group for case in CASES), IDLE)


def choose(names: Iterable[str]) -> set[str]:
    """Return the names of cases that names of cases and groups stand for.

    Raises:
        ValueError: there is no such case or group.
    """
    known = {case.name: {case.name} for case in CASES} | {IDLE: {IDLE}}
    for group in GROUPS[:-1]:
        known[group] = {case.name for case in CASES if case.group == group}
    chosen: set[str] = set()
    for name in names:
        if name not in known:
            raise ValueError(f"no case or group {name!r}; there are {', '.join(known)}")
        chosen |= known[name]
    return chosen

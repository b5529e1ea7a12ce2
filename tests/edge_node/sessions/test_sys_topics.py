"""``$SYS``: values, the clients that get them, and averages."""

from weft.edge_node.counters import Counters
from weft.edge_node.sessions.sys_topics import Facts, SysTopics
from weft.edge_node.subscriptions.message import Message


class Sys:
    def __init__(self) -> None:
        self.counters, self.reported, self.now = Counters(), list[Message](), 100.0
        self.topics = SysTopics(
            self.counters, lambda: Facts(clients_known=5, retained=2), self.reported.append, lambda: self.now, "weft 1"
        )

    def value(self, name: str) -> str | None:
        found = {message.topic: message.payload for message in self.topics.match("$SYS/#")}
        payload = found.get(b"$SYS/broker/" + name.encode())
        return None if payload is None else payload.decode()


def test_only_what_has_changed_is_told() -> None:
    node = Sys()
    node.reported.clear()
    node.counters.connections = 3
    node.topics.update()
    reported = {message.topic.decode().removeprefix("$SYS/broker/"): message.payload for message in node.reported}
    assert reported["clients/connected"] == b"3"
    assert reported["clients/disconnected"] == b"2"
    assert "version" not in reported
    assert all(message.retain for message in node.reported)


def test_wildcards_do_not_reach_it() -> None:
    """[MQTT-4.7.2-1]"""
    node = Sys()
    assert list(node.topics.match("#")) == []
    assert list(node.topics.match("+/broker/version")) == []
    assert [message.payload for message in node.topics.match("$SYS/broker/version")] == [b"weft 1"]
    assert node.value("retained messages/count") == "2"


def test_the_maximum_stays_and_loads_decay() -> None:
    node = Sys()
    node.counters.connections, node.counters.publishes_received = 7, 600
    node.now += 60
    node.topics.update()
    assert node.value("load/publish/received/1min") == "379.27", "600 a minute, for one time constant"
    node.counters.connections = 1
    node.now += 60
    node.topics.update()
    assert node.value("load/publish/received/1min") == "139.53"
    assert (node.value("clients/maximum"), node.value("uptime")) == ("7", "120 seconds")

"""An OPC UA server in a process of its own, whose variables change, and which writes down each value that it had.

``python -m tests.support.opcua_server PORT LOG [OPTIONS]``: OPTIONS is a JSON object of ``Options``. The library's
server is mended where it departs from the specification: it sets no overflow bit, answers Republish for what it does
not have, and does not take Publish requests of a session to which a subscription was handed over.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import ssl
import subprocess
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from subprocess import PIPE
from typing import Any, Self

from asyncua import Node, Server, ua
from asyncua.common.structures104 import new_enum, new_struct, new_struct_field
from asyncua.common.utils import ServiceError
from asyncua.server.address_space import AddressSpace, NodeManagementService
from asyncua.server.internal_server import InternalServer
from asyncua.server.internal_session import InternalSession, SessionState
from asyncua.server.internal_subscription import InternalSubscription
from asyncua.server.subscription_service import SubscriptionService
from asyncua.server.uaprocessor import UaProcessor

from tests.support.forked import Popen
from tests.support.third_party import MILO, MODBUS_SERIAL, NODE_OPCUA, OPEN62541

URI = "urn:example:press"
_OVERFLOW = 0x480


@dataclass
class Options:
    variables: int = 3
    every_s: float = 0.02
    """Time between two changes of a variable."""
    history: bool = False
    first: int = 0
    """Number of the first value."""
    spaces: tuple[str, ...] = ()
    """Namespaces that come before the press's own."""
    left_out: tuple[str, ...] = ()
    security: tuple[str, ...] = ()
    """Certificate and key."""
    user: str = ""
    user_certificate: str = ""
    """Certificate of the only user."""
    hands_over: bool = True
    """Whether node-opcua or open62541 hands a subscription of anonymous clients over to another session."""
    sampling_ms: int = 0
    """Shortest interval of samples, of node-opcua."""
    events: bool = False
    """Whether each change comes with an event of the press, an alarm whose message is its number. Of node-opcua:
    whether the press has an alarm, which is active before the first client comes, and stays so."""
    types: bool = False
    """Whether the press has a variable of a structure and one of an enumeration of its own, which do not change."""
    long_bytes: int = 0
    """Length of a text that a variable has from the twentieth value on."""


class Log:
    """The values of each variable, as the server had them, one on each line: variable, number, source time."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)

    def add(self, name: str, number: int, time: datetime) -> None:
        self._file.write(f"{name} {number} {time.isoformat(timespec='microseconds')}\n")

    def note(self, text: str) -> None:
        self._file.write(f"# {text}\n")


def prepare() -> None:
    """Make the nodes that every server has, once for all servers that are forked from this process: it takes a second.

    `tests.support.zygote` calls it.
    """
    from asyncua.server.standard_address_space.standard_address_space import fill_address_space

    space = AddressSpace()
    fill_address_space(NodeManagementService(space))

    async def load(self: Any, _shelf: Path | None = None) -> None:
        self.aspace._nodes = space._nodes

    InternalServer.load_standard_address_space = load


def mend(log: Log) -> None:
    enqueue = InternalSubscription._enqueue_event

    async def with_overflow(self: Any, mid: int, event: Any, size: int, queue: Any) -> None:
        drops = size != 0 and len(queue.get(mid, ())) >= size
        await enqueue(self, mid, event, size, queue)
        if drops:
            first = queue[mid][0]
            value = first.Value
            status = ua.StatusCode((value.StatusCode or ua.StatusCode()).value | _OVERFLOW)
            queue[mid][0] = ua.MonitoredItemNotification(
                first.ClientHandle, ua.DataValue(value.Value, status, value.SourceTimestamp, value.ServerTimestamp)
            )

    def republish(self: Any, number: int) -> Any:
        found = self._not_acknowledged_results.get(number)
        if found is None:
            raise ServiceError(ua.StatusCodes.BadMessageNotAvailable)
        return found.NotificationMessage

    def republished(self: Any, parameters: Any) -> Any:
        if parameters.SubscriptionId not in self.subscriptions:
            raise ServiceError(ua.StatusCodes.BadSubscriptionIdInvalid)
        return self.subscriptions[parameters.SubscriptionId].republish(parameters.RetransmitSequenceNumber)

    close_session = InternalSession.close_session

    async def closed(self: Any, delete_subs: bool = True) -> None:
        if self.external and self.state is not SessionState.Closed:
            log.note("session closed, with its subscriptions" if delete_subs else "session closed")
        await close_session(self, delete_subs)

    transfer = SubscriptionService.transfer_subscriptions

    async def transferred(self: Any, parameters: Any, session_id: Any, callback: Any) -> Any:
        results = await transfer(self, parameters, session_id, callback)
        for number in parameters.SubscriptionIds:
            if (found := self.subscriptions.get(number)) is not None:
                found.pub_request_callback = callback.__self__.get_publish_request
        return results

    InternalSession.close_session = closed
    InternalSubscription._enqueue_event = with_overflow
    InternalSubscription.republish = republish
    SubscriptionService.republish = republished
    SubscriptionService.transfer_subscriptions = transferred
    UaProcessor.publish_request_limit = lambda _, count: count + 10


async def add_types(server: Server, space: int, press: Node) -> None:
    """Add an enumeration, a structure with one of its values in it, and variables of both."""
    mode = await new_enum(server, space, "Mode", ["Idle", "Running"])
    fields = [
        new_struct_field("name", ua.VariantType.String),
        new_struct_field("mode", mode),
        new_struct_field("forces", ua.VariantType.Double, array=True),
        new_struct_field("limits", ua.NodeId(ua.ObjectIds.Range)),
        new_struct_field("note", ua.VariantType.String, optional=True),
    ]
    await new_struct(server, space, "Stroke", fields)
    await server.load_data_type_definitions()
    stroke = ua.Stroke(name="a", mode=ua.Mode.Running, forces=[1.5, 2.5], limits=ua.Range(0.0, 9.0), note=None)
    await press.add_variable(ua.NodeId("stroke", space), f"{space}:stroke", stroke, datatype=ua.Stroke.data_type)
    strokes = [stroke, stroke]
    await press.add_variable(ua.NodeId("strokes", space), f"{space}:strokes", strokes, datatype=ua.Stroke.data_type)
    running = await press.add_variable(ua.NodeId("mode", space), f"{space}:mode", 1, ua.VariantType.Int32, mode.nodeid)
    await running.add_property(0, "EURange", ua.Range(0.0, 1.0))


async def serve(port: int, log: Log, options: Options) -> None:
    from asyncua.crypto.permission_rules import User, UserRole
    from asyncua.server.user_managers import UserManager

    file = options.user_certificate
    known = ssl.PEM_cert_to_DER_cert(Path(file).read_text(encoding="ascii")) if file else b""

    class Users(UserManager):  # type: ignore[misc]
        def get_user(self, _server: Any, username: Any = None, password: Any = None, certificate: Any = None) -> Any:
            if known:
                return User(role=UserRole.Admin) if certificate == known else None
            wanted = options.user.split(":") if options.user else [None, None]
            return User(role=UserRole.Admin) if [username, password] == wanted or not options.user else None

    server = Server(user_manager=Users())
    await server.init()
    server.set_endpoint(f"opc.tcp://127.0.0.1:{port}/")
    if options.security:
        await server.load_certificate(options.security[0])
        await server.load_private_key(options.security[1])
        server.set_security_policy(
            [
                ua.SecurityPolicyType.Basic256Sha256_SignAndEncrypt,
                ua.SecurityPolicyType.Aes128Sha256RsaOaep_SignAndEncrypt,
                ua.SecurityPolicyType.Aes256Sha256RsaPss_Sign,
            ]
        )
    for uri in options.spaces:
        await server.register_namespace(uri)
    space = await server.register_namespace(URI)
    press = await server.nodes.objects.add_object(ua.NodeId("Press", space), f"{space}:Press")
    variables = []
    for number in range(options.variables):
        name = f"v{number}"
        if name in options.left_out:
            continue
        variable = await press.add_variable(ua.NodeId(name, space), f"{space}:{name}", -1, ua.VariantType.Int64)
        unit = ua.EUInformation(DisplayName=ua.LocalizedText("bar"))
        await variable.add_property(0, "EngineeringUnits", unit)
        variables.append((name, variable))
    speed = await server.nodes.objects.add_variable(ua.NodeId("speed", space), f"{space}:Speed", 0.0)
    await speed.set_writable()
    long = await press.add_variable(ua.NodeId("long", space), f"{space}:long", "") if options.long_bytes else None
    if options.types:
        await add_types(server, space, press)
    alarms = await server.get_event_generator(ua.ObjectIds.OffNormalAlarmType, press) if options.events else None
    async with server:
        if options.history:
            for _, variable in variables:
                await server.historize_node_data_change(variable, count=1_000_000)
        print("ready", flush=True)
        number = options.first
        while True:
            for name, variable in variables:
                time = datetime.now(UTC)
                log.add(name, number, time)
                value = ua.DataValue(ua.Variant(number, ua.VariantType.Int64), ua.StatusCode(), time, time)
                await variable.write_value(value)
            if alarms is not None:
                setattr(alarms.event, "ActiveState/Id", number % 2 == 1)
                time = datetime.now(UTC)
                log.add("events", number, time)
                await alarms.trigger(time, str(number))
            number += 1
            if long is not None and number == 20:
                await long.write_value("x" * options.long_bytes)
            await asyncio.sleep(options.every_s)


class OpcuaServer:
    """The server's process."""

    def __init__(self, port: int, log: Path, options: Options | None = None) -> None:
        self.port, self.log, self.options = port, log, options or Options()
        self._process: Popen | None = None

    def start(self) -> Self:
        """Start it with numbers above all that it has used."""
        self.options.first = max((number for _, number, _ in self.values()), default=-1) + 1
        self._process = Popen([*self.command(), json.dumps(asdict(self.options))], stdout=PIPE)
        assert self._process.stdout is not None
        while (line := self._process.stdout.readline()) != b"ready\n":
            assert line, "the server has ended"
        return self

    def command(self) -> list[str]:
        return [sys.executable, "-m", "tests.support.opcua_server", str(self.port), str(self.log)]

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def values(self) -> list[tuple[str, int, datetime]]:
        """What each variable was."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        parts = [line.split(" ") for line in lines if line.count(" ") == 2 and line[0] != "#"]
        return [(name, int(number), datetime.fromisoformat(time)) for name, number, time in parts]

    def notes(self) -> list[str]:
        """What happened beside."""
        return [line[2:] for line in self.log.read_text().splitlines() if line.startswith("# ")]

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()


class ModbusSerialServer(OpcuaServer):
    """A Modbus device of modbus-serial, started and killed the same way; the log has the number of its answers."""

    def command(self) -> list[str]:
        script = str(Path(__file__).with_name("modbus_server.cjs"))
        return ["node", script, str(self.port), str(self.log), str(MODBUS_SERIAL.obtain())]


class NodeOpcuaServer(OpcuaServer):
    """The same of node-opcua, which has no history, and nodes for ``variables`` alone."""

    def command(self) -> list[str]:
        script = str(Path(__file__).with_suffix(".cjs"))
        return ["node", script, str(self.port), str(self.log), str(NODE_OPCUA.obtain())]


class MiloServer(OpcuaServer):
    """The same of Eclipse Milo, which has neither history nor events here."""

    def command(self) -> list[str]:
        jars, folder = os.pathsep.join(MILO.jars()), self.log.parent / "milo"
        if not folder.exists():
            source = str(Path(__file__).with_name("MiloServer.java"))
            subprocess.run(["javac", "-cp", jars, "-d", str(folder), source], check=True)
        options = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
        return ["java", *options, "-cp", f"{folder}:{jars}", "MiloServer", str(self.port), str(self.log)]


class Open62541Server(OpcuaServer):
    """The same of open62541, which has neither history nor events here."""

    def command(self) -> list[str]:
        script = str(Path(__file__).with_name("opcua_open62541.py"))
        return [sys.executable, script, str(self.port), str(self.log), str(OPEN62541.obtain())]


if __name__ == "__main__":
    logging.getLogger("asyncua").setLevel(logging.CRITICAL + 1)
    values = Log(Path(sys.argv[2]))
    mend(values)
    given = Options(**json.loads(sys.argv[3])) if len(sys.argv) > 3 else Options()
    asyncio.run(serve(int(sys.argv[1]), values, given))

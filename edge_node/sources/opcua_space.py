"""The address space of an OPC UA server: nodes that settings name, found by bounded browsing, and values as JSON."""

from __future__ import annotations

import math
import re
import struct
from base64 import b64encode
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from fnmatch import fnmatchcase
from typing import Any, NamedTuple
from uuid import UUID

from asyncua import ua
from asyncua.common.session_interface import AbstractSession
from asyncua.common.utils import Buffer
from asyncua.ua.ua_binary import struct_from_binary, unpack_uatype

from weft.config.sources import OpcuaNode, OpcuaSource
from weft.edge_node.sources.connection import SourceDown

REFERENCES_MAX = 1000
"""References that one answer may have; the server keeps the others behind a continuation point."""
CONTINUATIONS_MAX = 1000
"""Continuation points of one node that are followed: a million references."""
BROWSED_MAX = 100_000
"""Nodes that are looked at for one `browse`."""
PATH_LEVELS_MAX = 64
AT_A_TIME = 500
"""Nodes in one request, where the server has no bound below that."""
ARRAY_MAX = 100_000
"""Elements of a value that are converted."""
HISTORY_VALUES = 1000
"""Values in one answer of the history."""
HISTORY_ANSWERS_MAX = 1000
"""Answers of the history for one variable and gap."""
DEPTH_MAX = 32
"""Levels of structures in a value that are converted."""
TYPES_MAX = 1000
"""Data types of a server's own whose definitions are read."""
EARLIEST = datetime(1990, 1, 1, tzinfo=UTC)
"""Source times before it are those of clocks that were never set: OPC UA counts from 1601."""
AHEAD = timedelta(days=1)
"""Source times further ahead of the node's clock are not believed."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNSET_YEAR = 1601
"""Year of the least time of OPC UA, which stands for none (OPC 10000-6, 5.2.2.5)."""
_OVERFLOW = 0x480
"""InfoType `DataValue` with the bit `Overflow` (OPC 10000-4, 7.39.1)."""
_NOT_IN_TOPICS = re.compile(r"[/+#\0]")
_HISTORY_READ = 1 << 2
_WRITTEN = ua.AttributeIds
_BUILT_IN_MAX = 30
"""Highest identifier of a built-in or abstract type (OPC 10000-6, 5.1.2)."""
_ROOTS = {"Root": 84, "Objects": 85, "Types": 86, "Views": 87}


_OF_EVENTS, _OF_CONDITIONS = ua.ObjectIds.BaseEventType, ua.ObjectIds.ConditionType
EVENT_FIELDS = {
    "event": (_OF_EVENTS, "EventId"),
    "type": (_OF_EVENTS, "EventType"),
    "source": (_OF_EVENTS, "SourceName"),
    "source_node": (_OF_EVENTS, "SourceNode"),
    "source_time": (_OF_EVENTS, "Time"),
    "server_time": (_OF_EVENTS, "ReceiveTime"),
    "severity": (_OF_EVENTS, "Severity"),
    "message": (_OF_EVENTS, "Message"),
    "condition": (_OF_CONDITIONS, "ConditionName"),
    "condition_node": (_OF_CONDITIONS, ""),
    "branch": (_OF_CONDITIONS, "BranchId"),
    "retain": (_OF_CONDITIONS, "Retain"),
    "enabled": (_OF_CONDITIONS, "EnabledState/Id"),
    "quality": (_OF_CONDITIONS, "Quality"),
    "comment": (_OF_CONDITIONS, "Comment"),
    "user": (_OF_CONDITIONS, "ClientUserId"),
    "acknowledged": (ua.ObjectIds.AcknowledgeableConditionType, "AckedState/Id"),
    "confirmed": (ua.ObjectIds.AcknowledgeableConditionType, "ConfirmedState/Id"),
    "active": (ua.ObjectIds.AlarmConditionType, "ActiveState/Id"),
}
"""Field of a record -> the type of events that has it, and its browse path there (OPC 10000-5, 6.4.2; OPC 10000-9, 5.5
to 5.8); the condition's own node has an empty one. Events of other types lack it."""
EVENTS_LOST = {
    "EventQueueOverflowEventType": "the server's queue of events was full. Raise `queue`, or publish more often",
    "RefreshRequiredEventType": "the server asks for a refresh of conditions: it may have left out events",
}
"""Type of the event that a server sends in place of those that are missing -> why they are (OPC 10000-4, 7.22.3;
OPC 10000-9, 5.11.4)."""
REFRESH_BEGINS, REFRESH_ENDS = "RefreshStartEventType", "RefreshEndEventType"


def event_filter() -> ua.EventFilter:
    """Return the filter that asks for ``EVENT_FIELDS`` of all events."""
    clauses = []
    for kind, path in EVENT_FIELDS.values():
        names = [ua.QualifiedName(name, ua.UInt16(0)) for name in path.split("/") if name]
        attribute = ua.AttributeIds.Value if names else ua.AttributeIds.NodeId
        clauses.append(ua.SimpleAttributeOperand(ua.NodeId(ua.Int32(kind)), names, attribute))
    return ua.EventFilter(SelectClauses=clauses)


class Found(NamedTuple):
    """A variable of the server, or a node with events."""

    id: ua.NodeId
    topic: str
    settings: OpcuaNode
    type: str = ""


@dataclass(slots=True)
class Item:
    """A variable that is monitored. Its place in the list of the subscription is its client handle."""

    node: str
    """Node id with the URI of its namespace."""
    topic: str
    unit: str = ""
    has_history: bool = False
    monitored: bool = True
    range: tuple[float, float] | None = None
    """Least and greatest value in ordinary operation, by the server's word (`EURange`)."""
    names: dict[int, str] = field(default_factory=dict)
    """Names of the values of an enumeration."""
    last: int = 0
    """Source time of the last value, in ns since 1970; 0 before the first."""
    is_first: bool = True
    """True until its first value in this subscription."""


class Missing(NamedTuple):
    """Nodes that settings name and the server does not have, or does not let the node read."""

    topic: str
    why: str
    settings: OpcuaNode


class Types:
    """Data types of a server's own: names of enumerations, and structures, which come as bytes (OPC 10000-6, 5.2.6)."""

    def __init__(self) -> None:
        self.enumerations: dict[ua.NodeId, dict[int, str]] = {}
        self._structures: dict[ua.NodeId, ua.StructureDefinition] = {}
        self._encodings: dict[ua.NodeId, ua.NodeId] = {}

    def add(self, kind: ua.NodeId, definition: object) -> list[ua.NodeId]:
        """Note what the server says of a type. Return the types that this one is made of."""
        if isinstance(definition, ua.EnumDefinition):
            self.enumerations[kind] = {each.Value: each.Name or "" for each in definition.Fields[:ARRAY_MAX]}
        elif isinstance(definition, ua.StructureDefinition):
            self._structures[kind], self._encodings[definition.DefaultEncodingId] = definition, kind
            return [each.DataType for each in definition.Fields]
        return []

    def decoded(self, value: Any) -> Any:
        """Return a structure, or those of an array, by the names of its fields; other values as they are."""
        if isinstance(value, list):
            return [self.decoded(each) for each in value[:ARRAY_MAX]] if value and _is_packed(value[0]) else value
        if not _is_packed(value) or value.TypeId not in self._encodings:
            return value
        try:
            return self._read(self._encodings[value.TypeId], Buffer(value.Body), 0)
        except (ua.UaError, ValueError, LookupError, struct.error):
            return value  # not what the server's own definition says

    def _read(self, kind: ua.NodeId, data: Buffer, depth: int) -> Any:
        if kind in self.enumerations:
            return unpack_uatype(ua.VariantType.Int32, data)
        if kind.NamespaceIndex == 0 and kind not in self._structures:
            return _read_standard(kind.Identifier, data)
        definition = self._structures[kind]
        if depth > DEPTH_MAX or definition.StructureType not in _STRUCTURES:
            raise LookupError(kind)
        chosen, found = definition.Fields, dict[str, Any]()
        mask = 0 if definition.StructureType == _STRUCTURES[0] else unpack_uatype(ua.VariantType.UInt32, data)
        if definition.StructureType == ua.StructureType.Union:
            chosen = chosen[mask - 1 : mask] if mask else []
        elif definition.StructureType == ua.StructureType.StructureWithOptionalFields:
            optional = [each.Name for each in chosen if each.IsOptional]
            absent = {name for bit, name in enumerate(optional) if not mask >> bit & 1}
            chosen = [each for each in chosen if each.Name not in absent]
        for each in chosen:
            if each.ValueRank < 1:
                found[each.Name or ""] = self._read(each.DataType, data, depth + 1)
                continue
            sizes = [unpack_uatype(ua.VariantType.Int32, data)]
            if each.ValueRank > 1:
                sizes = [unpack_uatype(ua.VariantType.Int32, data) for _ in range(min(sizes[0], DEPTH_MAX))]
            count = max(0, math.prod(sizes))
            if count > len(data):
                raise ValueError("an array is longer than its structure")
            found[each.Name or ""] = [self._read(each.DataType, data, depth + 1) for _ in range(count)]
        return found


_STRUCTURES = (ua.StructureType.Structure, ua.StructureType.StructureWithOptionalFields, ua.StructureType.Union)
_ALIASES = {290: ua.VariantType.Double, 294: ua.VariantType.DateTime, 295: ua.VariantType.String}
"""Duration, UtcTime and LocaleId, which are other names of built-in types."""


def _is_packed(value: Any) -> bool:
    return type(value) is ua.ExtensionObject and value.Body is not None


def _read_standard(kind: int, data: Buffer) -> Any:
    """Return a value of a type of the specification."""
    if basic := _ALIASES.get(kind) or (ua.VariantType(kind) if 1 <= kind <= ua.VariantType.DiagnosticInfo else None):
        return unpack_uatype(basic, data)
    known = getattr(ua, ua.ObjectIdNames.get(kind, ""), None)
    if known is None or not is_dataclass(known):
        return unpack_uatype(ua.VariantType.Int32, data)  # an enumeration
    return struct_from_binary(known, data)


class Space:
    """Looks at the nodes of one server. Requests are bounded in number and size."""

    def __init__(self, services: AbstractSession, source: str, settings: OpcuaSource) -> None:
        self._services = services
        self._source = source
        self._settings = settings
        self.namespaces: list[str] = []
        """URIs of the server's namespaces, by index."""
        self.started = 0
        """Time at which the server started, ns since 1970; 0 if it does not say."""
        self.expected: Sequence[str] = ()
        """The same in an earlier session: `ns=2` means what it meant then."""
        self.at_a_time = AT_A_TIME
        """Nodes in one request that the server takes."""
        self.definitions = Types()
        self.problems: list[str] = []
        """Nodes and facts that were left out, for the status."""

    async def look(self) -> None:
        """Read the server's table of namespaces, the time of its start, and its bounds.

        Raises:
            SourceDown: the server has none.
        """
        names_of, start_of = ua.ObjectIds.Server_NamespaceArray, ua.ObjectIds.Server_ServerStatus_StartTime
        found, start = await self.read([ua.NodeId(ua.Int32(names_of)), ua.NodeId(ua.Int32(start_of))])
        at = start.Value.Value if start.Value is not None else None
        self.started = nanoseconds(at) if isinstance(at, datetime) else 0
        names = found.Value.Value if found.Value is not None else None
        if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
            raise SourceDown("the server has no table of namespaces (NamespaceArray)")
        self.namespaces = names
        if self.expected and list(self.expected) != names:
            self.problems.append("the server has changed its table of namespaces; nodes are found by their URI")
        limits = [_value(each) for each in await self.read([ua.NodeId(ua.Int32(each)) for each in _LIMITS])]
        self.at_a_time = min([AT_A_TIME, *(each for each in limits if isinstance(each, int) and each > 0)])

    async def read(
        self, nodes: Sequence[ua.NodeId], attribute: ua.AttributeIds = ua.AttributeIds.Value
    ) -> list[ua.DataValue]:
        """Read an attribute of each node."""
        found: list[ua.DataValue] = []
        for first in range(0, len(nodes), self.at_a_time):
            part = list(nodes[first : first + self.at_a_time])
            answer = await self._services.read_attributes(part, attribute)
            if len(answer) != len(part):
                raise SourceDown(f"the server answered {len(answer)} of {len(part)} reads")
            found += answer
        return found

    # --- node ids

    def node_id(self, text: str) -> ua.NodeId:
        """Return the node id that settings name.

        Raises:
            LookupError: the server does not have its namespace.
            UaError: it is no node id.
        """
        match = re.match(r"ns=(\d+);|nsu=([^;]+);", text)
        if match is None:
            return ua.NodeId.from_string(text)
        uri = match[2]
        if uri is None:
            index = int(match[1])
            if index >= len(self.expected):
                return ua.NodeId.from_string(text)
            uri = self.expected[index]
        if uri not in self.namespaces:
            raise LookupError(f"the server has no namespace {uri}")
        return ua.NodeId.from_string(f"ns={self.namespaces.index(uri)};{text[match.end() :]}")

    def text(self, node: ua.NodeId) -> str:
        """Return a node id with the URI of its namespace."""
        text, index = str(node.to_string()), node.NamespaceIndex
        if not index or index >= len(self.namespaces):
            return text
        return f"nsu={self.namespaces[index]};{text.partition(';')[2]}"

    # --- the nodes of settings

    async def resolve(self, nodes: Iterable[OpcuaNode]) -> tuple[list[Found], list[Missing]]:
        """Find the nodes of settings, each once."""
        found: dict[ua.NodeId, Found] = {}
        missing: list[Missing] = []
        for each in nodes:
            try:
                async for one in self._of(each):
                    if len(found) >= self._settings.nodes_max:
                        self.problems.append(f"more than {self._settings.nodes_max} variables. Raise `nodes_max`")
                        return list(found.values()), missing
                    found.setdefault(one.id, one)
            except (LookupError, ua.UaError) as error:
                missing.append(Missing(self._topic(each), str(error), each))
        return list(found.values()), missing

    async def _of(self, each: OpcuaNode) -> Any:
        if each.browse is not None:
            top, path = await self._at(each.browse.below)
            base = self._topic(each) if each.topic else self._joined(path)
            async for one in self._below(top, base, each):
                yield one
            return
        if each.id is not None:
            node = self.node_id(each.id)
            path = [] if each.topic else await self._path_of(node)
        else:
            node, path = await self._at(each.path or "")
        yield Found(node, each.topic or self._joined(path), each)

    def _topic(self, each: OpcuaNode) -> str:
        name = each.id or each.path or (each.browse.below if each.browse is not None else "")
        return each.topic or self._joined([name])

    def _joined(self, path: Sequence[str]) -> str:
        return "/".join([self._source, *(level(name) for name in path)])

    async def _at(self, place: str) -> tuple[ua.NodeId, list[str]]:
        """Return the node at a browse path, or with an id, and its path below Objects."""
        if re.match(r"(ns=|nsu=|[isgb]=)", place):
            node = self.node_id(place)
            return node, await self._path_of(node)
        names = [name for name in place.split("/") if name]
        node = ua.NodeId(ua.Int32(_ROOTS.get(names[0], 85) if names else 85))
        path: list[str] = []
        for name in names[1:] if names and names[0] in _ROOTS else names:
            index, colon, rest = name.partition(":")
            wanted = (int(index), rest) if colon and index.isdigit() else (None, name)
            async for reference in self.children(node):
                qualified = reference.BrowseName
                if qualified.Name == wanted[1] and wanted[0] in (None, qualified.NamespaceIndex):
                    break
            else:
                raise LookupError(f"the server has no {place}: nothing is called {name} there")
            node = _local(reference.NodeId)
            path.append(qualified.Name)
        return node, path

    async def _path_of(self, node: ua.NodeId) -> list[str]:
        """Return the browse names from Objects to a node."""
        (name,) = await self.read([node], ua.AttributeIds.BrowseName)
        if name.StatusCode is not None and not name.StatusCode.is_good():
            raise LookupError(f"{name.StatusCode.name}: {name.StatusCode.doc}")
        found = name.Value.Value if name.Value is not None else None
        path = [found.Name or ""] if isinstance(found, ua.QualifiedName) else [node.to_string()]
        seen = {node}
        while len(path) < PATH_LEVELS_MAX:
            above = None
            async for reference in self.children(node, ua.BrowseDirection.Inverse):
                above = reference
                break
            if above is None or _local(above.NodeId) in seen:
                break
            node = _local(above.NodeId)
            seen.add(node)
            if node.NamespaceIndex == 0 and node.Identifier in _ROOTS.values():
                break
            path.insert(0, above.BrowseName.Name or "")
        return path

    async def _below(self, top: ua.NodeId, base: str, each: OpcuaNode) -> Any:
        """Yield the variables below a node, level by level, each node once."""
        browse = each.browse
        assert browse is not None
        seen, level_nodes, looked = {top}, [(top, base)], 0
        for _ in range(browse.depth):
            deeper: list[tuple[ua.NodeId, str]] = []
            variables: list[Found] = []
            for node, path in level_nodes:
                async for reference in self.children(node):
                    child = _local(reference.NodeId)
                    if child in seen:
                        continue  # hierarchies of servers have cycles
                    seen.add(child)
                    looked += 1
                    if looked > BROWSED_MAX:
                        self.problems.append(f"{browse.below} has more than {BROWSED_MAX} nodes below it")
                        return
                    name = reference.BrowseName.Name or ""
                    place = f"{path}/{level(name)}"
                    deeper.append((child, place))
                    if reference.NodeClass == ua.NodeClass.Variable and _is_wanted(name, browse.names):
                        variables.append(Found(child, place, each))
            types = await self.types([one.id for one in variables])
            for one, kind in zip(variables, types, strict=True):
                if not browse.types or kind in browse.types:
                    yield one._replace(type=kind)
            level_nodes = deeper
            if not deeper:
                return

    async def children(self, node: ua.NodeId, direction: ua.BrowseDirection = ua.BrowseDirection.Forward) -> Any:
        """Yield the references to nodes below a node, or above it. Properties are left out, as they describe it."""
        description = ua.BrowseDescription(
            NodeId=node,
            BrowseDirection=direction,
            ReferenceTypeId=ua.NodeId(ua.Int32(ua.ObjectIds.HierarchicalReferences)),
            IncludeSubtypes=True,
            NodeClassMask=ua.UInt32(ua.NodeClass.Object | ua.NodeClass.Variable),
            ResultMask=ua.UInt32(ua.BrowseResultMask.All),
        )
        parameters = ua.BrowseParameters(
            RequestedMaxReferencesPerNode=ua.UInt32(REFERENCES_MAX), NodesToBrowse=[description]
        )
        results = await self._services.browse(parameters)
        for _ in range(CONTINUATIONS_MAX):
            if len(results) != 1:
                raise SourceDown(f"the server answered one browse with {len(results)} results")
            (result,) = results
            result.StatusCode.check()
            for reference in result.References or []:
                if reference.ReferenceTypeId != _HAS_PROPERTY and not getattr(reference.NodeId, "ServerIndex", 0):
                    yield reference
            if not result.ContinuationPoint:
                return
            following = ua.BrowseNextParameters(False, [result.ContinuationPoint])
            results = await self._services.browse_next(following)
        # The server keeps a continuation point until it is released.
        if len(results) == 1 and results[0].ContinuationPoint:
            await self._services.browse_next(ua.BrowseNextParameters(True, [results[0].ContinuationPoint]))
        self.problems.append(f"{self.text(node)} has more than {CONTINUATIONS_MAX * REFERENCES_MAX} references")

    async def history(self, item: Item, since: int, until: int) -> AsyncIterator[ua.DataValue]:
        """Yield the values that the server kept of a variable, with source times between two moments, exclusive.

        Raises:
            LookupError, UaStatusCodeError, TimeoutError: it does not say.
        """
        node, point = self.node_id(item.node), b""
        details = ua.ReadRawModifiedDetails(
            IsReadModified=False,
            StartTime=datetime.fromisoformat(iso_of(since)).replace(tzinfo=None),
            EndTime=datetime.fromisoformat(iso_of(until)).replace(tzinfo=None),
            NumValuesPerNode=ua.UInt32(HISTORY_VALUES),
            ReturnBounds=False,
        )
        for _ in range(HISTORY_ANSWERS_MAX):
            one = ua.HistoryReadValueId(NodeId=node, ContinuationPoint=point)
            parameters = ua.HistoryReadParameters(details, ua.TimestampsToReturn.Both, False, [one])
            (result,) = await self._services.history_read(parameters)
            result.StatusCode.check()
            data = result.HistoryData
            for value in (data.DataValues if isinstance(data, ua.HistoryData) else None) or []:
                if since < nanoseconds(value.SourceTimestamp) < until:
                    yield value
            point = result.ContinuationPoint or b""
            if not point:
                return

    async def refresh(self, subscription: int) -> None:
        """Have the server send the present state of all conditions (ConditionRefresh, OPC 10000-9, 5.5.7).

        Raises:
            UaStatusCodeError, TimeoutError, OSError: it does not.
        """
        request = ua.CallMethodRequest()
        request.ObjectId = ua.NodeId(ua.Int32(_OF_CONDITIONS))
        request.MethodId = ua.NodeId(ua.Int32(ua.ObjectIds.ConditionType_ConditionRefresh))
        request.InputArguments = [ua.Variant(subscription, ua.VariantType.UInt32)]
        for result in await self._services.call([request]):
            result.StatusCode.check()

    def event(self, fields: Sequence[ua.Variant]) -> dict[str, Any]:
        """Return the payload of an event: the fields of ``EVENT_FIELDS`` that it has."""
        found = {}
        for name, variant in zip(EVENT_FIELDS, fields, strict=False):
            value = variant.Value
            if isinstance(value, datetime) and value.year <= _UNSET_YEAR:
                continue  # some servers, and Milo's example, do not set when they received it
            if isinstance(value, ua.NodeId):
                found[name] = self._type(value) if name == "type" else self.text(value)
            elif value is not None:
                found[name] = plain(value)
        return found

    # --- what is known of variables

    async def types(self, nodes: Sequence[ua.NodeId]) -> list[str]:
        """Return the names of the data types of variables; a node id for one of the server's own."""
        found = await self.read(nodes, ua.AttributeIds.DataType)
        return [self._type(each.Value.Value if each.Value is not None else None) for each in found]

    def _type(self, kind: object) -> str:
        if not isinstance(kind, ua.NodeId):
            return ""
        known = ua.ObjectIdNames.get(kind.Identifier) if kind.NamespaceIndex == 0 else None
        return known or self.text(kind)

    async def items(self, found: Sequence[Found]) -> list[Item]:
        """Return the items of variables, with their units, and whether the server keeps their history."""
        nodes = [each.id for each in found]
        levels = await self.read(nodes, ua.AttributeIds.UserAccessLevel)
        units, ranges = await self._property(nodes, "EngineeringUnits"), await self._property(nodes, "EURange")
        made = []
        for each, access, unit, limits in zip(found, levels, units, ranges, strict=True):
            bits = access.Value.Value if access.Value is not None else 0
            name = getattr(getattr(unit, "DisplayName", None), "Text", None) or ""
            item = Item(self.text(each.id), each.topic, name[:64], isinstance(bits, int) and bool(bits & _HISTORY_READ))
            if isinstance(limits, ua.Range) and math.isfinite(limits.Low) and math.isfinite(limits.High):
                item.range = float(limits.Low), float(limits.High)
            made.append(item)
        return made

    async def learn(self, items: Sequence[Item]) -> None:
        """Read the definitions of the types of variables. What a server does not define stays a number or bytes."""
        nodes = [self.node_id(each.node) for each in items]
        kinds = [_value(each) for each in await self.read(nodes, ua.AttributeIds.DataType)]
        known, wanted = set[ua.NodeId](), {each for each in kinds if _is_defined(each)}
        while wanted and len(known) < TYPES_MAX:
            known |= wanted
            some = list(wanted)[:TYPES_MAX]
            definitions = await self.read(some, ua.AttributeIds.DataTypeDefinition)
            parts = [self.definitions.add(kind, _value(each)) for kind, each in zip(some, definitions, strict=True)]
            wanted = {each for part in parts for each in part if _is_defined(each)} - known
        for item, kind in zip(items, kinds, strict=True):
            item.names = self.definitions.enumerations.get(kind, {}) if isinstance(kind, ua.NodeId) else {}

    async def _property(self, nodes: Sequence[ua.NodeId], name: str) -> list[Any]:
        """Return a property of each variable; None of those without it."""
        element = ua.RelativePathElement(
            ReferenceTypeId=_HAS_PROPERTY,
            IsInverse=False,
            IncludeSubtypes=True,
            TargetName=ua.QualifiedName(name, ua.UInt16(0)),
        )
        found: list[Any] = [None] * len(nodes)
        for first in range(0, len(nodes), self.at_a_time):
            part = nodes[first : first + self.at_a_time]
            paths = [ua.BrowsePath(node, ua.RelativePath([element])) for node in part]
            answers = await self._services.translate_browsepaths_to_nodeids(paths)
            known = [
                (first + at, _local(answer.Targets[0].TargetId))
                for at, answer in enumerate(answers[: len(part)])
                if answer.StatusCode.is_good() and answer.Targets
            ]
            values = await self.read([node for _, node in known])
            for (at, _), value in zip(known, values, strict=True):
                found[at] = _value(value)
        return found


_LIMITS = (
    ua.ObjectIds.Server_ServerCapabilities_OperationLimits_MaxNodesPerRead,
    ua.ObjectIds.Server_ServerCapabilities_OperationLimits_MaxNodesPerTranslateBrowsePathsToNodeIds,
    ua.ObjectIds.Server_ServerCapabilities_OperationLimits_MaxMonitoredItemsPerCall,
)
"""Bounds of the requests with many nodes; 0 is none (OPC 10000-5, 6.3.11)."""
_HAS_PROPERTY = ua.NodeId(ua.Int32(ua.ObjectIds.HasProperty))


def _value(found: ua.DataValue) -> Any:
    return None if found.Value is None else found.Value.Value


def _is_defined(kind: object) -> bool:
    """Return whether a type has a definition that is asked for: neither a built-in one, nor a standard structure."""
    if not isinstance(kind, ua.NodeId) or kind.NamespaceIndex:
        return isinstance(kind, ua.NodeId)
    name = ua.ObjectIdNames.get(kind.Identifier, "") if isinstance(kind.Identifier, int) else ""
    return bool(name) and not is_dataclass(getattr(ua, name, None)) and kind.Identifier > _BUILT_IN_MAX


def _local(node: ua.NodeId) -> ua.NodeId:
    """Return an ExpandedNodeId of the server itself as a NodeId, so that equal ones are equal."""
    return ua.NodeId(node.Identifier, node.NamespaceIndex, node.NodeIdType)


def level(name: str) -> str:
    """Return a browse name as a level of a topic."""
    return _NOT_IN_TOPICS.sub("_", name) or "_"


def _is_wanted(name: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


# Values.


def nanoseconds(time: datetime | None) -> int:
    """Return ns since 1970 of a server's time; 0 without one."""
    if time is None:
        return 0
    aware = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(microseconds=1) * 1000


def is_plausible(time: datetime | None, now_ns: int) -> bool:
    """Return whether a clock that was set may have given a time."""
    at = nanoseconds(time)
    return nanoseconds(EARLIEST) <= at <= now_ns + AHEAD // timedelta(microseconds=1) * 1000


def believed(time: datetime | None, now_ns: int) -> int:
    """Return a time in ns since 1970; the present in place of one that no clock that was set can have given.

    A gap that began in 1601, or in 2106, would name none of the values that are missing.
    """
    return nanoseconds(time) if is_plausible(time, now_ns) else now_ns


def is_overflow(status: ua.StatusCode) -> bool:
    """Return whether the server says that values before this one were dropped."""
    return bool(status.value & _OVERFLOW == _OVERFLOW)


def iso(time: datetime | None) -> str | None:
    """Return a time as text in UTC, to the microsecond."""
    if time is None:
        return None
    return (
        time.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
        if time.tzinfo
        else (time.isoformat(timespec="microseconds") + "Z")
    )


def iso_of(ns: int) -> str:
    """Return a time in ns since 1970 as text."""
    return iso(_EPOCH + timedelta(microseconds=ns // 1000)) or ""


def facts(item: Item, value: ua.DataValue, now_ns: int, types: Types) -> dict[str, Any]:
    """Return the payload of a value."""
    status = value.StatusCode or ua.StatusCode()
    variant = value.Value
    found: dict[str, Any] = {
        "value": None if variant is None else plain(types.decoded(variant.Value), variant.Dimensions),
        "type": "" if variant is None else getattr(variant.VariantType, "name", ""),
        "status": status.value,
        "status_name": status.name,
        "source_time": iso(value.SourceTimestamp),
        "server_time": iso(value.ServerTimestamp),
        "node": item.node,
    }
    if item.unit:
        found["unit"] = item.unit
    if item.range is not None:
        found["range"] = item.range
    if item.names and (name := item.names.get(found["value"]) if isinstance(found["value"], int) else None):
        found["name"] = name
    if value.SourceTimestamp is not None and not is_plausible(value.SourceTimestamp, now_ns):
        found["source_time_implausible"] = True
    return found


def plain(value: Any, dimensions: Sequence[int] | None = None) -> Any:
    """Return a value as JSON has it: bytes in Base64, times in ISO 8601, NaN and infinities as text."""
    if dimensions and len(dimensions) > 1 and isinstance(value, list):
        return _nested([plain(each) for each in value[:ARRAY_MAX]], list(dimensions))
    return _plain(value, 0)


def _plain(value: Any, depth: int) -> Any:
    if depth > DEPTH_MAX:
        return None
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, list | tuple):
        return [_plain(each, depth + 1) for each in value[:ARRAY_MAX]]
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, dict):
        return {name: _plain(each, depth + 1) for name, each in value.items()}
    return _structure(value, depth)


def _structure(value: Any, depth: int) -> Any:
    if isinstance(value, ua.LocalizedText):
        return value.Text
    if isinstance(value, ua.QualifiedName):
        return value.to_string()
    if isinstance(value, ua.NodeId):
        return value.to_string()
    if isinstance(value, ua.StatusCode):
        return value.value
    if isinstance(value, ua.Variant):
        return _plain(value.Value, depth + 1)
    if isinstance(value, ua.DataValue):
        return _plain(value.Value, depth + 1)
    if is_dataclass(value):
        return {each.name: _plain(getattr(value, each.name), depth + 1) for each in fields(value)}
    return str(value)


def _nested(flat: list[Any], dimensions: list[int]) -> Any:
    """Return the elements of a matrix row by row; flat where the dimensions do not fit them."""
    if math.prod(dimensions) != len(flat) or min(dimensions) < 1:
        return flat
    for size in reversed(dimensions[1:]):
        flat = [flat[at : at + size] for at in range(0, len(flat), size)]
    return flat

"""Loader of a YAML file into a checked model. Every error names file, line, path, what was expected and what was
found.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
import yaml
from msgspec import inspect

from weft.config.errors import ConfigError, Finding, KeyPath, Problem
from weft.config.machine import why_unreadable
from weft.config.models import EdgeConfig
from weft.config.payload_schema.model import (
    OVER_S,
    PayloadSchema,
    QualityRule,
    QualityRules,
    UniqueKeys,
    ValueRange,
    check_rules,
    check_schema,
    written_out,
)
from weft.config.reader import INVALID, MISSING, YamlReader, explained
from weft.config.schema import default_of, model_shape, shape_of, unit_of
from weft.config.units import format_duration

# Overlays of a configuration: texts of YAML whose settings win over those of a file, and what they may have.

NAME = "the hub's configuration"
"""Name of an overlay in errors, in the place of a file's."""
PUSHABLE = (
    "streams",
    "unrouted",
    "links",
    "sources",
    "sparkplug",
    "disk",
    "commit_interval",
    "state",
    "queues",
    "limits",
)
"""Sections of an edge's configuration that a hub may set: not its identity, its folder, its listeners and accounts."""
NODES_MAX, DEPTH_MAX = 20_000, 64
"""Maximum number of values in an overlay, and of sections around one. Aliases of YAML count each time."""
_SECRETS = re.compile(r"password|passwd|secret|token|credential|api_?key", re.IGNORECASE)
_RIGHTS = (
    "config_from_hub",
    "config_signed_by",
    "cluster",
    "down",
    "pull",
    "redirects",
    "proxy",
    "proxy_username",
    "retry_min",
    "retry_max",
    "ping_interval",
    "silence",
)
"""Settings of a link that say which hub may do what, through whom credentials go, and how soon a lost hub is found
again: with one of them a hub could give itself rights, read a password, or cut an edge off after its trial."""


def is_local(path: Sequence[str], type_: inspect.Type) -> bool:
    """Return whether a setting belongs to the machine alone: files, credentials, and the rights of hubs.

    Args:
        path: names of its sections and its own.
    """
    if unit_of(type_) == "path" or _SECRETS.search(path[-1]):
        return True
    return path[0] == "links" and path[-1] in _RIGHTS


def lay_over(node: yaml.Node, overlays: Sequence[str]) -> yaml.Node:
    """Return the tree of a file with the settings of overlays, in their order. Mappings are joined; anything else takes
    the place of what was there. Values of overlays have no line.

    Raises:
        ConfigError: an overlay is not a mapping in YAML, or beyond a bound.
    """
    for text in overlays:
        over = read_overlay(text)
        _forget_places(over, set())
        node = _joined(node, over)
    return node


def read_overlay(text: str) -> yaml.MappingNode:
    """Return the tree of an overlay.

    Raises:
        ConfigError: it is not a mapping in YAML, names a key twice, or is beyond a bound.
    """
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        line, message = explained(error, text)
        raise _wrong(line, message) from None
    except RecursionError:
        raise _wrong(0, "this is nested too deeply for a configuration") from None
    if not isinstance(node, yaml.MappingNode):
        raise _wrong(1, "expected settings with their values, such as `streams: {...}`")
    for count, (each, depth) in enumerate(_nodes(node, 0)):
        if count >= NODES_MAX or depth > DEPTH_MAX:
            raise _wrong(each.start_mark.line + 1, f"this has more than {NODES_MAX} values or {DEPTH_MAX} levels")
        if isinstance(each, yaml.MappingNode):
            _check_keys(each)
    return node


def findings_of(text: str) -> list[Finding]:
    """Return the settings of an overlay that no hub may set on an edge, each with the reason.

    Raises:
        ConfigError: as ``read_overlay``.
    """
    return list(_refused(read_overlay(text), model_shape(EdgeConfig), ()))


def check_overlay(text: str) -> None:
    """Refuse an overlay with settings that no hub may set on an edge.

    Raises:
        ConfigError: it has some, or as ``read_overlay``.
    """
    findings = findings_of(text)
    if findings:
        raise ConfigError([Problem(NAME, 0, path, message) for path, message in findings[:20]])


def unreadable_in(text: str) -> list[Problem]:
    """Return what no edge of this release can read in an overlay: misspelt settings, and values of another type. What
    an overlay leaves to the edge's file is none.

    Raises:
        ConfigError: as ``read_overlay``.
    """
    reader = YamlReader("/", EdgeConfig, parse)
    node = lay_over(_compose("node: edge\ndata_dir: /\n", NAME), [text])
    reader.read(node, model_shape(EdgeConfig), ())
    return [Problem(NAME, 0, path, said) for path, said in reader.findings if not said.startswith(MISSING)]


def topic_patterns(text: str) -> Iterator[str]:
    """Yield the values of ``from`` of an overlay's streams. The overlay has nothing that an edge cannot read.

    Raises:
        ConfigError: as ``read_overlay``.
    """
    sections = [value for key, value in read_overlay(text).value if key.value == "streams"]
    for stream in (value for section in sections for _, value in section.value):
        for written in (value for key, value in stream.value if key.value == "from"):
            yield from (each.value for each in ([written] if isinstance(written, yaml.ScalarNode) else written.value))


def leaves(text: str) -> Iterator[tuple[str, str]]:
    """Yield the settings of an overlay with their values as text. Lists are one value.

    Raises:
        ConfigError: as ``read_overlay``.
    """
    yield from _leaves(read_overlay(text), "")


def _leaves(node: yaml.Node, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, yaml.MappingNode) and node.value:
        for key, value in node.value:
            yield from _leaves(value, f"{path}.{key.value}" if path else key.value)
    else:
        yield path, _shown(node)


def _shown(node: yaml.Node) -> str:
    if isinstance(node, yaml.SequenceNode):
        return f"[{', '.join(map(_shown, node.value))}]"
    if isinstance(node, yaml.MappingNode):
        return "{" + ", ".join(f"{key.value}: {_shown(value)}" for key, value in node.value) + "}"
    return str(node.value)


def _nodes(node: yaml.Node, depth: int) -> Iterator[tuple[yaml.Node, int]]:
    """Yield a tree's nodes, each as often as it is named. The caller ends it: an alias may lead back to itself."""
    yield node, depth
    if isinstance(node, yaml.SequenceNode):
        for each in node.value:
            yield from _nodes(each, depth + 1)
    elif isinstance(node, yaml.MappingNode):
        for _, value in node.value:
            yield from _nodes(value, depth + 1)


def _check_keys(node: yaml.MappingNode) -> None:
    known = set[str]()
    for key, _ in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise _wrong(line, "expected a name as key")
        if key.value in known:
            raise _wrong(line, f"{key.value[:80]} is given twice: keep one")
        known.add(key.value)


def _joined(under: yaml.Node, over: yaml.Node) -> yaml.Node:
    if not isinstance(under, yaml.MappingNode) or not isinstance(over, yaml.MappingNode):
        return over
    values = {key.value: value for key, value in over.value}
    # A file with a key twice keeps both: the reader names its lines.
    entries = [
        (key, _joined(value, values[key.value])) if _name(key) in values else (key, value) for key, value in under.value
    ]
    known = {_name(key) for key, _ in under.value}
    entries += [(key, value) for key, value in over.value if key.value not in known]
    return yaml.MappingNode(under.tag, entries, under.start_mark, under.end_mark)


def _name(key: yaml.Node) -> str | None:
    return key.value if isinstance(key, yaml.ScalarNode) else None


def _refused(node: yaml.Node, type_: inspect.Type, path: KeyPath) -> Iterator[Finding]:
    """Yield the local settings of a tree. It follows every type that a value may have: a value that fits none is for
    the reader."""
    shape = shape_of(type_)
    inner = shape.type
    if isinstance(inner, inspect.UnionType):
        extra = {} if shape.short is None else {"x-short": shape.short}
        for each in inner.types:
            yield from _refused(node, inspect.Metadata(each, extra_json_schema=extra), path)
    elif isinstance(inner, inspect.StructType):
        fields = {field.encode_name: field for field in inner.fields}
        if not isinstance(node, yaml.MappingNode):
            if shape.short is not None:
                yield from _refused_field(node, fields[shape.short], (*path, shape.short))
            return
        renamed = getattr(inner.cls, "renamed", None) or {}
        for key, value in node.value:
            name = renamed.get(key.value, key.value)
            if not path and name not in PUSHABLE:
                yield Finding((name,), f"cannot be set by a hub; sections that can are: {', '.join(PUSHABLE)}")
            elif name in fields:
                yield from _refused_field(value, fields[name], (*path, name))
    elif isinstance(inner, inspect.DictType) and isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _refused(value, inner.value_type, (*path, key.value))
    elif isinstance(inner, inspect.VarTupleType):
        for at, each in enumerate(node.value if isinstance(node, yaml.SequenceNode) else [node]):
            yield from _refused(each, inner.item_type, (*path, at))


def _refused_field(node: yaml.Node, field: inspect.Field, path: KeyPath) -> Iterator[Finding]:
    if is_local([str(each) for each in path], field.type):
        yield Finding(path, "cannot be set by a hub: files, credentials and the rights of hubs belong to the edge")
        return
    yield from _refused(node, field.type, path)


def _forget_places(node: yaml.Node, seen: set[int]) -> None:
    if id(node) in seen:
        return
    seen.add(id(node))
    node.start_mark = node.end_mark = yaml.Mark(NAME, 0, -1, 0, None, 0)
    if isinstance(node, yaml.SequenceNode):
        for each in node.value:
            _forget_places(each, seen)
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            _forget_places(key, seen)
            _forget_places(value, seen)


def _wrong(line: int, message: str) -> ConfigError:
    return ConfigError([Problem(NAME, line, (), message)])


def addresses_with_credentials(local: EdgeConfig, wanted: EdgeConfig, trusted: str) -> list[Finding]:
    """Return the changed addresses to which the edge would show a credential that it has for another one.

    A hub may move the link that it configures the edge by, since it has that link's token already.

    Args:
        local: the edge's own configuration.
        wanted: the same with overlays.
        trusted: name of that link.
    """
    found = []
    for name, link in local.links.items():
        wants = wanted.links.get(name)
        path: KeyPath = ("links", name, "to")
        if wants is None:
            if name == trusted:
                found.append(Finding(("links", name), "cannot be removed by a hub: it configures the edge by it"))
            continue
        if link.token_file is None and link.certificate is None:
            continue
        if wants.to != link.to and name != trusted:
            found.append(Finding(path, "cannot be set by a hub: the link shows its own credential there"))
        elif all(url.startswith("https:") for url in link.to) and any(not url.startswith("https:") for url in wants.to):
            found.append(Finding(path, "expected URLs with https, as the edge's file has: the link shows a credential"))
    for name, source in local.sources.items():
        if name not in wanted.sources:
            continue
        has, gets = source.server, wanted.sources[name].server
        if has is None:
            continue  # it shows no credential
        tls, security = getattr(has, "tls", None), getattr(has, "security", None)
        secret = has.password_file or has.password_env or (tls and tls.certificate) or security
        if secret and (
            gets is None or has.url != gets.url or type(has) is not type(gets) or _server(has) != _server(gets)
        ):
            path = ("sources", name)
            found.append(Finding(path, "its address cannot be set by a hub: the source shows a credential there"))
    return found


def foreign_ports(local: EdgeConfig, wanted: EdgeConfig) -> list[Finding]:
    """Return the addresses that name a serial port of the edge, which its own file does not name there.

    A port is a file of the machine, and a poll writes to it.

    Args:
        local: the edge's own configuration.
        wanted: the same with overlays.
    """
    found = []
    for name, source in wanted.sources.items():
        if source.modbus is None or not source.modbus.url.startswith("serial:"):
            continue
        own = local.sources.get(name)
        if own is None or own.modbus is None or own.modbus.url != source.modbus.url:
            message = "cannot be set by a hub: serial ports belong to the edge. Name the port in the edge's file"
            found.append(Finding(("sources", name, "modbus", "url"), message))
    return found


def _server(settings: msgspec.Struct) -> object:
    tls = getattr(settings, "tls", None)
    return getattr(settings, "security", None) if tls is None else (tls.server_name, tls.ca_file)


FILE_BYTES_MAX = 1 << 20
"""Maximum size of a configuration file."""
PROBLEMS_MAX = 20
"""Maximum number of problems reported at once."""
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
"""Byte order marks of UTF-16, which some editors call Unicode."""

Config = TypeVar("Config", bound=msgspec.Struct)


@dataclass(frozen=True)
class Loaded(Generic[Config]):
    """A model, and the places of its values in the file."""

    config: Config
    file: str
    lines: dict[KeyPath, int]

    def refuse(self, findings: Sequence[Finding]) -> ConfigError:
        """Return the error for findings of later checks. A finding about a section that is not in the file has no
        line."""
        problems = _error(self.file, self.lines, findings).problems
        return ConfigError([each if each.path[:1] in self.lines else each._replace(line=0) for each in problems])

    def with_default(self, finding: Finding) -> Finding:
        """Return a finding about a value; its message says so when the value is a default, which no line of the file
        has."""
        if finding.path in self.lines:
            return finding
        return finding._replace(message=f"its default cannot be used: {finding.message}")


def load(
    path: str,
    model: type[Config],
    check: Callable[[Config], Sequence[Finding]] | None = None,
    settings: Sequence[str] = (),
    *,
    overlays: Sequence[str] = (),
) -> Loaded[Config]:
    """Read ``path`` as ``model`` and run ``check`` on it. ``ConfigError`` lists the problems.

    ``overlays`` are texts whose settings win over those of the file, the last one first (``config.load``),
    and ``settings`` such as ``source.store=/data/hub`` win over both.

    Relative paths in the file are resolved against the file's folder, so a node may be started from anywhere.
    """
    return parse(_read(path), path, model, check, settings, overlays=overlays)


def parse(
    text: str,
    file: str,
    model: type[Config],
    check: Callable[[Config], Sequence[Finding]] | None = None,
    settings: Sequence[str] = (),
    *,
    overlays: Sequence[str] = (),
) -> Loaded[Config]:
    """Read a text as ``load`` reads a file; ``file`` is its name in errors."""
    node = _compose(text, file)
    if overlays:
        # where there are any, and not in every node

        node = lay_over(node, overlays)
    if settings:
        from weft.config.reader import apply  # where there are any, and not in every node

        node = apply(node, settings)
    reader = YamlReader(os.path.dirname(os.path.abspath(file)), model, parse)
    value = reader.read(node, model_shape(model), ())
    if reader.findings or value is INVALID:
        raise _error(file, reader.lines, reader.findings)
    loaded = Loaded(value, file, reader.lines)
    findings = check(value) if check else ()
    if findings:
        raise loaded.refuse(findings)
    return loaded


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError([Problem(path, 0, (), why_unreadable(error))]) from None
    if len(data) > FILE_BYTES_MAX:
        message = f"expected a configuration of at most {FILE_BYTES_MAX} bytes. Name a configuration file"
        raise ConfigError([Problem(path, 0, (), message)])
    if data.startswith(_UTF_16):
        raise ConfigError([Problem(path, 1, (), "this is UTF-16 text. Save the file as UTF-8")])
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            [Problem(path, line, (), f"expected UTF-8 text, got byte {data[error.start]:#04x}. Save the file as UTF-8")]
        ) from None


def _compose(text: str, file: str) -> yaml.Node:
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        line, message = explained(error, text)
        raise ConfigError([Problem(file, line, (), message)]) from None
    except RecursionError:
        raise ConfigError([Problem(file, 0, (), "this is nested too deeply for a configuration")]) from None
    if node is None:
        raise ConfigError(
            [Problem(file, 0, (), "expected settings, got an empty file. Write settings into it, or name another file")]
        )
    return node


def _error(file: str, lines: dict[KeyPath, int], findings: Sequence[Finding]) -> ConfigError:
    return ConfigError([Problem(file, _line(lines, path), path, message) for path, message in findings[:PROBLEMS_MAX]])


def _line(lines: dict[KeyPath, int], path: KeyPath) -> int:
    """Return the line of the path, or of the nearest section around it when the path is not in the file."""
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, 0)


# Comparison of two readings of a configuration.


def changed_settings(before: msgspec.Struct, now: msgspec.Struct) -> list[str]:
    """Return the settings that differ, named as in YAML: ``disk.budget``, ``streams.vibration (new)``."""
    return list(_changes(before, now, ""))


def without_defaults(value: Any) -> Any:
    """Return a setting or section as plain values, without the settings that have their defaults.

    So the result stays the same when a later release has more settings or another order, and when a file states a
    default. Settings are sorted by name; mappings keep their order.
    """
    if isinstance(value, msgspec.Struct):
        fields = model_shape(type(value)).fields
        given = ((field.encode_name, getattr(value, field.name), default_of(field)) for field in fields)
        return {
            name: without_defaults(each) for name, each, default in sorted(given, key=_field_name) if each != default
        }
    if isinstance(value, dict):
        return {name: without_defaults(each) for name, each in value.items()}
    return [without_defaults(each) for each in value] if isinstance(value, tuple) else value


def without_folders(value: Any) -> Any:
    """Return a setting or section with the names of files in place of their paths, so that it is the same on each
    machine and wherever the configuration is."""
    if isinstance(value, msgspec.Struct):
        fields = model_shape(type(value)).fields
        inner = {field.name: getattr(value, field.name) for field in fields}
        for field in fields:
            is_path, each = unit_of(field.type) == "path", inner[field.name]
            inner[field.name] = _names_of(each) if is_path else without_folders(each)
        return msgspec.structs.replace(value, **inner)
    if isinstance(value, dict):
        return {name: without_folders(each) for name, each in value.items()}
    return tuple(without_folders(each) for each in value) if isinstance(value, tuple) else value


def _names_of(paths: Any) -> Any:
    if isinstance(paths, tuple):
        return tuple(map(os.path.basename, paths))
    return None if paths is None else os.path.basename(paths)


def _field_name(field: tuple[str, Any, Any]) -> str:
    return field[0]


def _changes(before: Any, now: Any, path: str) -> Iterator[str]:
    if before == now:
        return
    if isinstance(before, msgspec.Struct) and type(before) is type(now):
        for field in msgspec.structs.fields(before):
            inner = f"{path}.{field.encode_name}" if path else field.encode_name
            yield from _changes(getattr(before, field.name), getattr(now, field.name), inner)
    elif isinstance(before, dict) and isinstance(now, dict):
        for name in before.keys() | now.keys():
            inner = f"{path}.{name}"
            if name not in now:
                yield f"{inner} (gone)"
            elif name not in before:
                yield f"{inner} (new)"
            else:
                yield from _changes(before[name], now[name], inner)
    elif _are_sections(before) and _are_sections(now) and len(before) == len(now):
        for at, (one, other) in enumerate(zip(before, now, strict=True)):
            yield from _changes(one, other, f"{path}[{at}]")
    else:
        yield path


def _are_sections(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(each, msgspec.Struct) for each in value)


# Text forms of quality rules: YAML or JSON.


def parse_rules(text: str, name: str = "rules") -> QualityRules:
    """Return the rules of a text in YAML or JSON.

    Args:
        name: name of the text in errors.

    Raises:
        ConfigError: the text is not rules; the message names the place and the fix.
    """
    return parse(text, name, QualityRules, lambda rules: list(check_rules(rules))).config


def rules_text(rules: QualityRules) -> str:
    """Return rules in YAML, as ``parse_rules`` reads them: a line for each rule."""
    vanished = "null" if rules.vanished_after is None else rules.vanished_after
    lines = [*(["quarantine: true"] if rules.quarantine else []), f"vanished_after: {vanished}", "rules:"]
    for name, rule in rules.rules.items():
        written = yaml.safe_dump(
            _rule_written(rule), allow_unicode=True, default_flow_style=True, sort_keys=False, width=1 << 20
        )
        lines.append(f"  {name}: {written.rstrip()}")
    return "\n".join(lines) + "\n"


def _rule_written(rule: QualityRule) -> dict[str, Any]:
    name, value = rule.chosen
    if isinstance(value, ValueRange):
        value = {key: _number(each) for key, each in msgspec.to_builtins(value).items() if each is not None}
    elif isinstance(value, UniqueKeys):
        is_short = value.within == UniqueKeys(fields=("",)).within
        value = [*value.fields] if is_short else {"fields": [*value.fields], "within": value.within}
    elif name == "fresh":
        value = format_duration(value)
    written: dict[str, Any] = {name: value}
    if rule.tolerate:
        written["tolerate"] = rule.tolerate
    if rule.over_s != OVER_S:
        written["over"] = format_duration(rule.over_s)
    return written


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


# Text forms of a payload schema: YAML or JSON, or the short form.


def parse_schema(
    text: str | Mapping[str, Any], name: str = "schema", payload_format: str | None = None
) -> PayloadSchema:
    """Return the schema of a text or of a mapping with the same keys.

    Args:
        text: YAML or JSON of the model, or the short form: ``temperature float, unit string not null``. The short form
            also knows Spark's names of types: ``double``, ``bigint``, ``boolean``.
        name: name of the text in errors.
        payload_format: format of the payloads, where the text is the short form; None takes ``json``.

    Raises:
        ConfigError: the text is not a schema; the message names the place and the fix.
    """
    if not isinstance(text, str):
        text = _written(text, name)
    text = written_out(text, name, payload_format)
    return parse(text, name, PayloadSchema, lambda schema: list(check_schema(schema))).config


def schema_text(schema: PayloadSchema) -> str:
    """Return the JSON of a schema, which ``parse_schema`` reads."""
    return msgspec.json.encode(schema).decode()


def _written(value: Mapping[str, Any], name: str) -> str:
    try:
        return msgspec.json.encode(dict(value)).decode()
    except (TypeError, ValueError) as error:
        raise ConfigError(
            [Problem(name, 0, (), f"expected text, numbers, lists and mappings alone: {error}")]
        ) from None

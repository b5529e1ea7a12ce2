"""Overlays of a configuration: texts of YAML whose settings win over those of a file, and what they may have."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec
import yaml
from msgspec import inspect

from weft.config.errors import ConfigError, Finding, KeyPath, Problem
from weft.config.fields import model_shape, shape_of, unit_of
from weft.config.models import EdgeConfig
from weft.config.reading.yaml_words import explained

NAME = "the hub's configuration"
"""Name of an overlay in errors, in the place of a file's."""
PUSHABLE = (
    "streams", "unrouted", "links", "sources", "sparkplug", "disk", "commit_interval", "state", "queues", "limits",
)  # fmt: skip
"""Sections of an edge's configuration that a hub may set: not its identity, its folder, its listeners and accounts."""
NODES_MAX, DEPTH_MAX = 20_000, 64
"""Maximum number of values in an overlay, and of sections around one. Aliases of YAML count each time."""
_SECRETS = re.compile(r"password|passwd|secret|token|credential|api_?key", re.IGNORECASE)
_RIGHTS = (
    "config_from_hub", "config_signed_by", "cluster", "down", "pull", "redirects", "proxy", "proxy_username",
    "retry_min", "retry_max", "ping_interval", "silence",
)  # fmt: skip
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
                found.append(Finding(("links", name), "cannot be taken away by a hub: it configures the edge by it"))
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
        has, gets = source.settings, wanted.sources[name].settings
        secret = has.password_file or has.password_env or (has.tls and has.tls.certificate)
        if secret and (has.url != gets.url or type(has) is not type(gets) or _server(has) != _server(gets)):
            path = ("sources", name)
            found.append(Finding(path, "its address cannot be set by a hub: the source shows a credential there"))
    return found


def _server(settings: msgspec.Struct) -> object:
    tls = getattr(settings, "tls", None)
    return None if tls is None else (tls.server_name, tls.ca_file)

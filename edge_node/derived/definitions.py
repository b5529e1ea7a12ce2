"""Derived streams of a configuration, and the chains of their functions."""

from __future__ import annotations

import ast
import difflib
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from weft.config.errors import Finding, KeyPath
from weft.config.functions.step import Enrich, Python
from weft.config.load import without_defaults, without_folders
from weft.config.machine import why_unreadable
from weft.config.models import EdgeConfig
from weft.config.schema import model_shape, unit_of
from weft.config.signing import CodeNotSigned, check_code, digest_of
from weft.config.streams import Stream
from weft.config.units import Section, format_duration
from weft.edge_node.check.streams import (
    Flow,
    carried_streams,
    inputs,
    is_derived,
    level_names,
    read_by_first,
    streams_of,
)
from weft.functions.chain import Chain, Writing
from weft.functions.contract import Context, Function
from weft.functions.enrich import TableError, read_table, wanted_of
from weft.functions.registry import KINDS, converts, decoding_of, format_of
from weft.protocols.topics import compile_pattern

LEVELS_KNOWN_MAX = 20_000
"""Keys whose named levels are remembered."""
KEY_BYTES_KNOWN_MAX = 512
"""Longest key that is remembered."""
DIGEST_BYTES = 16
LABEL_BYTES = 6


class Definition(NamedTuple):
    """A derived stream as configured."""

    name: str
    inputs: tuple[str, ...]
    """Streams of the log that it reads, in order."""
    others: tuple[str, ...]
    """Streams that its functions route rows to."""
    digest: bytes
    """Checksum of the settings of its functions, with the names of files and without their folders: the same on each
    machine. The content of the files is in the version of each function (``Function.version``)."""
    make_chain: Callable[[], Chain]
    whole: bytes = b""
    """Checksum of all these settings, folders included: a different one means different functions."""

    def works_like(self, other: Definition | None) -> bool:
        """Return whether another definition means the same functions."""
        return other is not None and (self.digest, self.whole) == (other.digest, other.whole)


class Levels:
    """Named levels of keys, by the patterns of a stream."""

    def __init__(self, patterns: tuple[str, ...]) -> None:
        """Compile the patterns; the first that matches a key counts."""
        self._patterns = [pattern for pattern in map(compile_pattern, patterns) if pattern.fields]
        self._known: dict[bytes, Mapping[str, str]] = {}

    def __call__(self, key: bytes) -> Mapping[str, str]:
        """Return name -> value of a key's levels."""
        found = self._known.get(key)
        if found is None:
            found = self._levels(key)
            if len(key) > KEY_BYTES_KNOWN_MAX:
                return found
            if len(self._known) >= LEVELS_KNOWN_MAX:
                self._known.clear()
            self._known[key] = found
        return found

    def _levels(self, key: bytes) -> Mapping[str, str]:
        if not self._patterns:
            return {}
        topic = key.decode(errors="replace")
        return next((found for each in self._patterns if (found := each.match(topic)) is not None), {})


def definitions(config: EdgeConfig) -> Iterator[Definition]:
    """Yield the derived streams of a configuration that was checked.

    Also streams with ``raw: discard``: messages that earlier settings stored must still be read.
    """
    return _definitions(config, before_log=False)


def definitions_before_log(config: EdgeConfig) -> Iterator[Definition]:
    """Yield the streams whose functions work on messages before the log (``raw: discard``). Their input is empty."""
    return _definitions(config, before_log=True)


def _definitions(config: EdgeConfig, *, before_log: bool) -> Iterator[Definition]:
    flow = Flow(config)
    for name, stream in config.streams.items():
        if is_derived(stream) and (stream.raw == "discard" or not before_log):
            others = dict.fromkeys(target for step in stream.functions for target in step.facts.targets)
            definition = _definition(config, flow, name)
            yield Definition(
                name,
                inputs(name, stream),
                tuple(others),
                _checksum(without_folders(definition), DIGEST_BYTES),
                _maker(config, flow, name),
                _checksum(definition, DIGEST_BYTES),
            )


def functions_of(config: EdgeConfig, flow: Flow, name: str) -> list[tuple[str, Function]]:
    """Return new functions of a stream, each with the label of its state.

    Raises:
        ValueError: a function cannot work with its settings; the message has the reason.
    """
    found: list[tuple[str, Function]] = []
    first = decoding_of(flow.input_payload(name)).first
    if first is not None and read_by_first(config.streams[name]) is None:
        found.append((flow.input_payload(name).format, first))
    for at, step in enumerate(config.streams[name].functions):
        kind, settings = step.chosen
        label = f"{kind}-{_checksum(without_folders(settings), LABEL_BYTES).hex()}"
        alike = sum(other == label or other.startswith(f"{label}-") for other, _ in found)
        found.append((f"{label}-{alike}" if alike else label, KINDS[kind](settings, context(config, flow, name, at))))
    return found


def context(config: EdgeConfig, flow: Flow, name: str, at: int) -> Context:
    """Return the context for the function of a stream at a position."""
    patterns = flow.patterns_before(name, at)
    stream = config.streams[name]
    return Context(
        name,
        inputs(name, stream),
        Levels(patterns),
        level_names(patterns),
        stream.functions[at].takes_nulls,
        config.functions_signed_by,
    )


def chain_of(config: EdgeConfig, flow: Flow, name: str) -> Chain:
    """Return a new chain of a stream's functions, without any state.

    Raises:
        ValueError: as ``functions_of``.
    """
    return join(flow, name, functions_of(config, flow, name))


def join(flow: Flow, name: str, functions: Sequence[tuple[str, Function]]) -> Chain:
    """Return a chain of functions of a stream, from its input's format to its own."""
    given, wanted = flow.input_payload(name), flow.payload(name)
    writing = Writing(format_of(wanted), converts(given, wanted))
    return Chain(functions, decoding_of(given).format, writing)


def _maker(config: EdgeConfig, flow: Flow, name: str) -> Callable[[], Chain]:
    return lambda: chain_of(config, flow, name)


def _definition(config: EdgeConfig, flow: Flow, name: str) -> tuple[Any, ...]:
    """Return all settings that decide the results of a stream's functions; the content of files is not among them."""
    stream = config.streams[name]
    patterns = flow.patterns_before(name, 0)
    return stream.functions, flow.input_payload(name), flow.payload(name), inputs(name, stream), patterns


def _checksum(settings: Any, length: int) -> bytes:
    """Return a checksum of settings that stays the same in later releases with more settings: states are found by
    it."""
    return hashlib.blake2b(msgspec.json.encode(without_defaults(settings)), digest_size=length).digest()


# Checks of functions that need the functions themselves: each is created from its settings and inspected.

_RULE = re.compile(r"rules\[(\d+)\]\.where")
_RESULTS = frozenset({"window", "sql", "sparkplug"})
_SINGLE = frozenset({"number", "text", "bytes"})
"""Formats with the field `value` alone."""
RETAIN_S_MIN = 3600.0
"""Retention of an input below which stopped functions soon miss records: a disk may well be full for an hour."""


def function_findings(config: EdgeConfig) -> Iterator[Finding]:
    """Create every function of a checked configuration, and yield the reasons why some cannot work.

    No process is started, and files are opened by ``function_files``.
    """
    flow = Flow(config)
    for name, stream in config.streams.items():
        if is_derived(stream):
            yield from _formats(name, stream, flow)
            made: list[tuple[str, Function]] = []
            for at, step in enumerate(stream.functions):
                kind, settings = step.chosen
                try:
                    made.append((kind, KINDS[kind](settings, context(config, flow, name, at))))
                except (ValueError, OSError) as error:
                    within, message = _place(settings, str(error).removeprefix(f"{kind}: "))
                    yield Finding(("streams", name, "functions", at, kind, *within), message)
            yield from _memories(name, stream, flow, made)


def _place(settings: Any, message: str) -> tuple[KeyPath, str]:
    """Return the setting that a function's message begins with (``lateness: ``, ``rules[0].where: ``), and the rest of
    the message: a function may have many lines, and the message is about one of them."""
    head, colon, rest = message.partition(": ")
    if not colon:
        return (), message
    if isinstance(settings, Mapping):
        if head in settings:
            return (head,), rest
        # An expression: report the name that it defines.
        return next((((key,), message) for key, text in settings.items() if head in str(text)), ((), message))
    if not isinstance(settings, Section):
        return (), message
    rule = _RULE.fullmatch(head)
    if rule is not None:
        return ("rules", int(rule[1]), "where"), rest
    values = {field.encode_name: getattr(settings, field.name) for field in model_shape(type(settings)).fields}
    if head in values.get("emit", ()):
        return ("emit", head), rest
    if head not in values:
        return (), message
    within, message = _place(values[head], rest)
    return (head, *within), message


def function_files(config: EdgeConfig) -> Iterator[Finding]:
    """Open the files that functions name, and yield those that cannot be read: their functions wait for them."""
    for name, stream in config.streams.items():
        for at, step in enumerate(stream.functions):
            kind, settings = step.chosen
            path: KeyPath = ("streams", name, "functions", at, kind)
            found = list(_unreadable(settings)) or list(_unsigned(settings, config))
            problem = None if found else unusable_content(settings)
            if problem is not None:
                found = [("file", problem)]
            for key, each in found:
                yield Finding((*path, key), f"{each}. The functions of {name} wait for it")


def code_findings(config: EdgeConfig) -> Iterator[Finding]:
    """Yield the files of functions that no key of ``functions_signed_by`` signed as they are. Blocks."""
    for name, stream in config.streams.items():
        for at, step in enumerate(stream.functions):
            kind, settings = step.chosen
            for key, problem in _unsigned(settings, config):
                yield Finding(("streams", name, "functions", at, kind, key), problem)


def _unsigned(settings: Any, config: EdgeConfig) -> Iterator[tuple[str, str]]:
    if not config.functions_signed_by or not isinstance(settings, Python):
        return
    for key, path in _files(settings):
        try:
            check_code(path, digest_of(path), config.functions_signed_by)
        except CodeNotSigned as error:
            yield key, str(error)
        except (OSError, ValueError):
            continue  # a file that cannot be read is not a matter of signatures: its function waits


def _unreadable(settings: Any) -> Iterator[tuple[str, str]]:
    for key, file in _files(settings):
        try:
            if not stat.S_ISREG(mode := os.stat(file).st_mode) and not stat.S_ISDIR(mode):
                # To open a pipe would wait for a process that writes to it.
                yield key, f"{file}: this is not a regular file"
                continue
            with open(file, "rb"):
                pass
        except OSError as error:
            yield key, f"{file}: {why_unreadable(error)}"


def _files(settings: Any) -> Iterator[tuple[str, str]]:
    """Yield the settings of a function that are paths."""
    if not isinstance(settings, Section):
        return
    for field in model_shape(type(settings)).fields:
        value = getattr(settings, field.name)
        if value is not None and unit_of(field.type) == "path":
            yield from ((field.encode_name, each) for each in ([value] if isinstance(value, str) else value))


def function_notes(config: EdgeConfig) -> Iterator[Finding]:
    """Yield warnings: settings of a checked configuration that are allowed, and perhaps not intended."""
    flow, streams = Flow(config), streams_of(config)
    for name, stream in config.streams.items():
        if not is_derived(stream):
            continue
        if flow.is_taken_for_json(name):
            source = stream.from_stream[0] if stream.from_stream else name
            yield Finding(
                ("streams", name, "functions"),
                f"no setting has the format of {source}; as these functions name fields, they read JSON, and payloads "
                f"that are not go to {name}-errors. Set streams.{source}.payload to the format",
            )
        if stream.functions and flow.input_payload(name).format == "bytes" and not _knows_bytes(stream):
            source = stream.from_stream[0] if stream.from_stream else name
            yield Finding(
                ("streams", name, "functions"),
                f"payloads of {source} are bytes, so that functions know no field but `value`. Set "
                f"streams.{source}.payload, such as `json`",
            )
        yield from _written_as(name, stream, flow)
        yield from _leaves_elsewhere(name, stream, config)
        for source in stream.from_stream:
            retain_s = streams[source].retain.time_s
            if retain_s is not None and retain_s < RETAIN_S_MIN:
                yield Finding(
                    ("streams", name, "from_stream"),
                    f"records of {source} are deleted after {format_duration(retain_s)}: what functions have not read "
                    f"by then is missing in {name}. Set streams.{source}.retain.time to an hour or more",
                )
            if streams[source].when_full == "drop_oldest":
                yield Finding(
                    ("streams", name, "from_stream"),
                    f"{source} drops its oldest records when there is no room, perhaps before functions have read "
                    f"them. What is missing in {name} then is recorded as a gap of {source}",
                )


def _written_as(name: str, stream: Stream, flow: Flow) -> Iterator[Finding]:
    """Point out results with several fields in a format that has one."""
    kind = next((step.chosen[0] for step in stream.functions if step.chosen[0] in _RESULTS), None)
    written = flow.payload(name).format
    if kind is not None and written in _SINGLE:
        mend = "Set" if stream.from_stream else f"Derive another stream from {name}, for {kind}, with"
        yield Finding(
            ("streams", name, "payload" if stream.payload is not None else "functions"),
            f"results of {kind} have several fields, and payloads of {name} are `{written}`, which has one: all of "
            f"them would go to the errors. {mend} `payload: json`",
        )


def _leaves_elsewhere(name: str, stream: Stream, config: EdgeConfig) -> Iterator[Finding]:
    """Point out redacted fields that leave the node in another stream."""
    at = next((at for at, step in enumerate(stream.functions) if step.redact is not None), -1)
    for link_name, link in config.links.items() if at >= 0 else ():
        for source in set(stream.from_stream).intersection(carried_streams(link, config)):
            yield Finding(
                ("streams", name, "functions", at, "redact"),
                f"link {link_name} carries {source} as it came, with what is redacted here. Set "
                f"`streams.{source}.replicate: false` if it has to stay on the node",
            )


def _formats(name: str, stream: Stream, flow: Flow) -> Iterator[Finding]:
    path: KeyPath = ("streams", name, "payload" if stream.payload is not None else "functions")
    try:
        decoding_of(flow.input_payload(name))
        format_of(flow.payload(name))
    except ValueError as error:
        yield Finding(path, str(error))


def _memories(name: str, stream: Stream, flow: Flow, made: list[tuple[str, Function]]) -> Iterator[Finding]:
    """Refuse ``raw: discard`` where the log is needed: a memory is restored from records, and records advance its
    time."""
    if stream.raw != "discard":
        return
    kinds = [kind for kind, function in made if not function.is_stateless]
    if flow.input_payload(name).format == "sparkplug":
        kinds.append("sparkplug")
    if kinds:
        yield Finding(
            ("streams", name, "raw"),
            f"`discard` needs functions without a memory, and {' and '.join(dict.fromkeys(kinds))} have one: after a "
            "power cut it is made from records in the log. Remove `raw`, or derive a second stream with them",
        )


def _knows_bytes(stream: Stream) -> bool:
    return any(step.python is not None for step in stream.functions)


def _without_function(code: ast.Module, settings: Python) -> str | None:
    """Return a message when a file plainly lacks the function; None where it has it, or may define it in another
    way."""
    wanted = settings.function or ("process_batch" if settings.batch else "process")
    plain = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    names = [each.name for each in code.body if isinstance(each, plain)]
    if wanted in names or any(
        wanted in ast.dump(each) or _imports_all(each) for each in code.body if not isinstance(each, plain)
    ):
        return None
    near = difflib.get_close_matches(wanted, names, 1, 0.6)
    advice = f"Did you mean {near[0]}? Rename it, or set `function`" if near else f"Define {wanted}"
    return f"{settings.file}: it has no function {wanted}. {advice}"


def _imports_all(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names)


def unusable_content(settings: Any) -> str | None:
    """Return why a function cannot use its readable file; None when it can. Blocks; runs no code of users."""
    if isinstance(settings, Enrich):
        try:
            read_table(wanted_of(settings))
        except TableError as error:
            return str(error)
    elif isinstance(settings, Python):
        try:
            with open(settings.file, encoding="utf-8") as file:
                code = ast.parse(file.read(), settings.file)
        except (OSError, SyntaxError, ValueError) as error:
            line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
            return f"{settings.file}{line}: is not Python: {getattr(error, 'msg', error)}"
        return _without_function(code, settings)
    return None

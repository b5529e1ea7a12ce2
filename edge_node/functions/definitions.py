"""Derived streams of a configuration, and the chains of their functions."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from weft.config.models import EdgeConfig
from weft.config.reading.changes import without_defaults, without_folders
from weft.edge_node.check.derived import inputs, is_derived
from weft.edge_node.check.flow import Flow, level_names, read_by_first
from weft.edge_node.functions.chain import Chain, Writing
from weft.edge_node.functions.contract import Context, Function
from weft.edge_node.functions.formats.choice import converts, decoding_of, format_of
from weft.edge_node.functions.registry import KINDS
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
            said = _said(config, flow, name)
            yield Definition(
                name, inputs(name, stream), tuple(others), _checksum(without_folders(said), DIGEST_BYTES),
                _maker(config, flow, name), _checksum(said, DIGEST_BYTES),
            )  # fmt: skip


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
        name, inputs(name, stream), Levels(patterns), level_names(patterns), stream.functions[at].takes_nulls,
        config.functions_signed_by,
    )  # fmt: skip


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


def _said(config: EdgeConfig, flow: Flow, name: str) -> tuple[Any, ...]:
    """Return all settings that decide the results of a stream's functions; the content of files is not among them."""
    stream = config.streams[name]
    patterns = flow.patterns_before(name, 0)
    return stream.functions, flow.input_payload(name), flow.payload(name), inputs(name, stream), patterns


def _checksum(settings: Any, length: int) -> bytes:
    """Return a checksum of settings that stays the same in later releases with more settings: states are found by
    it."""
    return hashlib.blake2b(msgspec.json.encode(without_defaults(settings)), digest_size=length).digest()

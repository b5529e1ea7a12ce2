"""Frames of the feature ``CONFIG``: the configuration that a hub wants for an edge, and the edge's answer."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from hashlib import blake2b
from typing import Annotated

import msgspec
from msgspec import Meta

from weft.protocols.fields import U32, U64

TEXT_CHARACTERS_MAX = 24 << 10
"""Longest text of one layer."""
LAYERS_MAX = 17
"""Maximum number of layers: those of an edge's groups, and its own."""
REASON_CHARACTERS_MAX = 500
_Digest = Annotated[str, Meta(max_length=32)]


class ConfigLayer(msgspec.Struct, frozen=True, array_like=True):
    """Settings that are laid over those of the edge's file and of the layers before."""

    name: Annotated[str, Meta(max_length=160)]
    """``group NAME`` or ``edge NAME``, for people."""
    version: U64
    """Number of the entry of the cluster log that declared it."""
    text: Annotated[str, Meta(max_length=TEXT_CHARACTERS_MAX)]
    """YAML."""


class ConfigDesired(msgspec.Struct, frozen=True, array_like=True):
    """The configuration that the hub wants for the edge; without layers, that of the edge's file alone."""

    version: U64
    """The highest version of its layers, for people; 0 without any."""
    digest: _Digest
    """``digest_of`` its layers; empty without any."""
    layers: Annotated[list[ConfigLayer], Meta(max_length=LAYERS_MAX)]


class ConfigOutcome(IntEnum):
    """Outcomes of a desired configuration at an edge. The numbers are on the wire."""

    NONE = 0
    """The edge has only its file, and was asked for nothing else."""
    TRIAL = 1
    """In force, and not confirmed yet."""
    CONFIRMED = 2
    REFUSED = 3
    """The edge did not apply it; ``reason`` says why."""
    ROLLED_BACK = 4
    """Applied, and taken back; ``reason`` says why."""


class ConfigState(msgspec.Struct, frozen=True, array_like=True):
    """The edge's statement about the last desired configuration, at the start of a link and after each change."""

    version: U64
    digest: _Digest
    outcome: U32
    """``ConfigOutcome``, or a later release's number."""
    reason: Annotated[str, Meta(max_length=REASON_CHARACTERS_MAX)]
    active_version: U64
    """Version of the hub's configuration that is in force; 0 for none."""
    active_digest: _Digest


def digest_of(layers: Sequence[ConfigLayer]) -> str:
    """Return the digest by which both ends name a configuration; empty without layers."""
    return blake2b(msgspec.msgpack.encode(list(layers)), digest_size=8).hexdigest() if layers else ""


def desired_of(layers: Sequence[ConfigLayer]) -> ConfigDesired:
    """Return the frame with some layers."""
    return ConfigDesired(max((layer.version for layer in layers), default=0), digest_of(layers), list(layers))

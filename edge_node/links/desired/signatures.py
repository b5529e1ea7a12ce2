"""Signed configurations: an edge whose file names keys takes from a hub only what one of them signed, for it, and once.

A hub can still withhold settings. What it can not do is make some, give an edge those of another, bring back earlier
ones, leave some out, or lay them in another order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from weft.config.models import EdgeConfig
from weft.config.reading.overlays import read_overlay
from weft.config.signing.keys import KnownKeys, read_public_keys, verifies
from weft.config.signing.statement import SignatureUnreadable, SignedText, Statement, read_signed
from weft.protocols.lane import NodeName
from weft.protocols.link.configuration import ConfigLayer
from weft.protocols.shard.completeness import matches

TARGETS_MAX = 1024
"""Maximum number of targets whose numbers an edge remembers: its own, and groups that it was in."""
_ADVICE = "Sign it with `weft config sign`, and declare the signed file"


class NotTaken(Exception):
    """A configuration that the edge does not take for the sake of its signatures; the message says why."""


class TakenNumber(msgspec.Struct, frozen=True, array_like=True):
    """The newest settings for a target that an edge has confirmed."""

    number: int
    text: str
    """Prefix of the checksum of what was signed: the same number may not come with something else."""


Taken = Mapping[str, TakenNumber]
"""Target -> the newest settings for it."""


class SigningRules(NamedTuple):
    """The demands of an edge's file."""

    node: NodeName
    key_files: tuple[str, ...]
    """PEM files with public keys. They are read for each configuration, so a key can be replaced in its file."""


def rules_of(config: EdgeConfig, link: str | None) -> SigningRules | None:
    """Return what a file demands of the settings of a link's hub; None where it demands no signatures."""
    files = () if link is None else config.links[link].config_signed_by
    return SigningRules(NodeName(config.tenant, config.node), files) if files else None


def check_signatures(
    layers: Sequence[ConfigLayer], in_force: Sequence[ConfigLayer], taken: Taken, rules: SigningRules
) -> None:
    """Check the layers of a configuration. Blocks on the files of keys.

    Args:
        in_force: layers of the confirmed configuration.
        taken: the newest settings that were confirmed before.

    Raises:
        NotTaken: a layer has no signature of a key, or one for another edge; it is an earlier one; or one is missing.
    """
    known = read_public_keys(rules.key_files)
    newest = remembered(in_force, taken, rules, known)
    statements: dict[str, SignedText] = {}
    for layer in layers:
        if layer.name in statements:
            raise NotTaken(f"{layer.name} comes twice")
        statements[layer.name] = _checked(layer, newest, rules, known)
    if len({*newest, *statements}) > TARGETS_MAX:
        raise NotTaken(f"the edge has taken settings for {TARGETS_MAX} targets, the most that it remembers")
    _check_order(list(statements.values()))
    for name in (layer.name for layer, _ in _verified(in_force, rules, known)):
        if name not in statements and not _may_go(name, in_force, newest, statements):
            raise NotTaken(
                f"{name} is missing, and nothing that is signed withdraws its settings. Sign a file with `{{}}` for it"
                ", or one for the edge with --withdraws"
            )


def remembered(
    layers: Sequence[ConfigLayer], taken: Taken, rules: SigningRules, known: KnownKeys | None = None
) -> Taken:
    """Return the newest settings once a configuration is confirmed. Blocks on the files of keys.

    Args:
        known: the keys, if they were read already.
    """
    found = dict(taken)
    keys = known if known is not None else read_public_keys(rules.key_files) if layers else KnownKeys((), ())
    for layer, signed in _verified(layers, rules, keys):
        before = found.get(layer.name)
        if before is None or before.number < signed.statement.number:
            found[layer.name] = TakenNumber(signed.statement.number, _checksum(signed))
    return found


def _checked(layer: ConfigLayer, newest: Taken, rules: SigningRules, known: KnownKeys) -> SignedText:
    try:
        signed = read_signed(layer.text)
    except SignatureUnreadable as error:
        raise NotTaken(f"{layer.name}: {error}") from None
    if signed is None:
        raise NotTaken(f"{layer.name} has no signature, and the edge's file has config_signed_by. {_ADVICE}")
    if signed.key not in {key.id for key in known.keys}:
        raise NotTaken(
            f"{layer.name} is signed by the key {signed.key}, which is none of config_signed_by: {known.named()}"
        )
    if not verifies(known.keys, signed.message, signed.signature):
        raise NotTaken(f"the signature of {layer.name} does not match: it was changed after it was signed. {_ADVICE}")
    if why := _is_for_others(layer.name, signed.statement, rules.node):
        raise NotTaken(f"{layer.name} is signed for {why}. {_ADVICE}")
    before, number = newest.get(layer.name), signed.statement.number
    if before is not None and number < before.number:
        raise NotTaken(
            f"{layer.name} has the number {number}, an earlier one again: the edge has had {before.number}. {_ADVICE}"
        )
    if before is not None and number == before.number and _checksum(signed) != before.text:
        raise NotTaken(f"{layer.name} has the number {number}, which the edge has had with other settings. {_ADVICE}")
    return signed


def _is_for_others(name: str, statement: Statement, node: NodeName) -> str:
    """Return for whom the settings are, unless they are for this node in this place."""
    if statement.tenant != node.tenant:
        return f"the tenant {statement.tenant}, not for {node.tenant}"
    if statement.target != name:
        return f"{statement.target}, not for {name}"
    if statement.target.startswith("edge ") and statement.target != f"edge {node.edge}":
        return f"{statement.target}, not for edge {node.edge}"
    if not any(matches(pattern, node.edge) for pattern in statement.edges):
        return f"the edges {', '.join(statement.edges)}"
    return ""


def _check_order(signed: Sequence[SignedText]) -> None:
    places = [
        (each.statement.target.startswith("edge "), each.statement.order, each.statement.target) for each in signed
    ]
    if places != sorted(places):
        names = ", ".join(f"{each.statement.target} ({each.statement.order})" for each in signed)
        raise NotTaken(f"the hub lays the settings in another order than they are signed for: {names}")


def _may_go(name: str, in_force: Sequence[ConfigLayer], newest: Taken, statements: Mapping[str, SignedText]) -> bool:
    """Return whether the edge may lose the settings of a target: they are empty, or newer ones withdraw them."""
    text = next(layer.text for layer in in_force if layer.name == name)
    if not read_overlay(text).value:
        return True
    newer = (each.statement for each in statements.values() if each.statement.number > newest[name].number)
    return any(name in statement.withdraws for statement in newer)


def _verified(
    layers: Sequence[ConfigLayer], rules: SigningRules, known: KnownKeys
) -> Iterator[tuple[ConfigLayer, SignedText]]:
    """Yield the layers that a key signed for this edge. Others were taken before the file named keys."""
    for layer in layers:
        try:
            signed = read_signed(layer.text)
        except SignatureUnreadable:
            continue
        if signed is None or _is_for_others(layer.name, signed.statement, rules.node):
            continue
        if verifies(known.keys, signed.message, signed.signature):
            yield layer, signed


def _checksum(signed: SignedText) -> str:
    return blake2b(signed.message, digest_size=16).hexdigest()

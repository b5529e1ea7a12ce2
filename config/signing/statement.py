"""Signed settings for edges: a statement and its signature behind the YAML, as comments of YAML.

The text stays one that every release of a hub stores and carries, and that every edge reads. The bytes that are signed
are on docs/reference/formats/signatures.md.
"""

from __future__ import annotations

import base64
import hashlib
import re
from typing import NamedTuple

from weft.config.signing.keys import ID_CHARACTERS, SIGNATURE_BYTES

VERSION = 1
NUMBER_MAX = (1 << 63) - 1
ORDER_MAX = 1000
NAMES_MAX = 256
"""Maximum number of names or patterns in one line."""
NOTHING = "-"
"""Text of a list without entries."""
_BEGIN = "# weft-signature: "
_WORD = r"[^\s,]{1,255}"
_LIST = rf"(?:{_WORD})(?:, {_WORD})*"
_TARGET = rf"(?:edge|group) {_WORD}"
_LINES = re.compile(
    rf"# weft-signature: 1\n"
    rf"# tenant: (?P<tenant>{_WORD})\n"
    rf"# target: (?P<target>{_TARGET})\n"
    rf"# edges: (?P<edges>{_LIST})\n"
    rf"# order: (?P<order>0|-?[1-9][0-9]{{0,3}})\n"
    rf"# number: (?P<number>[1-9][0-9]{{0,18}})\n"
    rf"# withdraws: (?P<withdraws>-|{_TARGET}(?:, {_TARGET})*)\n"
    rf"# key: (?P<key>[0-9a-f]{{{ID_CHARACTERS}}})\n"
    rf"# ed25519: (?P<signature>[A-Za-z0-9+/]{{86}}==)\n?"
)


class SignatureUnreadable(ValueError):
    """A signature that is not written as it has to be; the message says so."""


class Statement(NamedTuple):
    """The facts that are signed with the settings."""

    tenant: str
    target: str
    """``edge NAME`` or ``group NAME``."""
    edges: tuple[str, ...]
    """Names of edges, and patterns in which ``*`` stands for any characters, that may take the settings."""
    order: int
    """Place among the groups of an edge, as ``weft hub group`` declares it; 0 for an edge."""
    number: int
    """It grows with each signature for the target; seconds since 1970 if no one says otherwise."""
    withdraws: tuple[str, ...] = ()
    """Targets whose settings the edge may lose with these."""


class SignedText(NamedTuple):
    """Settings with their signature, which is not checked yet."""

    text: str
    """The settings alone."""
    statement: Statement
    key: str
    """Name of the key that made it, by its own word."""
    signature: bytes

    @property
    def message(self) -> bytes:
        """Return the bytes that are signed."""
        return message_of(self.text, self.statement)


def message_of(text: str, statement: Statement) -> bytes:
    """Return the bytes that are signed for some settings."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    return "".join(f"{line}\n" for line in (*_lines(statement), f"sha256: {digest}")).encode()


def with_signature(text: str, statement: Statement, key: str, signature: bytes) -> str:
    """Return settings with their signature behind them."""
    lines = (*_lines(statement), f"key: {key}", f"ed25519: {base64.b64encode(signature).decode()}")
    return text + "".join(f"# {line}\n" for line in lines)


def read_signed(text: str) -> SignedText | None:
    """Return the parts of settings with a signature; None for settings without one.

    Raises:
        SignatureUnreadable: the signature is not written as it has to be, or more follows it.
    """
    at = 0 if text.startswith(_BEGIN) else text.rfind(f"\n{_BEGIN}") + 1
    if at == 0 and not text.startswith(_BEGIN):
        return None
    found = _LINES.fullmatch(text, at)
    if found is None:
        version = text[at + len(_BEGIN) :].partition("\n")[0][:20]
        why = "" if version == str(VERSION) else f": it has version {version!r}, and this release knows {VERSION}"
        raise SignatureUnreadable(f"its signature cannot be read{why}. Sign the settings again, and add nothing behind")
    edges, withdraws = found["edges"].split(", "), found["withdraws"]
    statement = Statement(
        found["tenant"], found["target"], tuple(edges), int(found["order"]), int(found["number"]),
        () if withdraws == NOTHING else tuple(withdraws.split(", ")),
    )  # fmt: skip
    signature = base64.b64decode(found["signature"])
    within = statement.number <= NUMBER_MAX and abs(statement.order) <= ORDER_MAX
    if not within or max(len(edges), len(statement.withdraws)) > NAMES_MAX or len(signature) != SIGNATURE_BYTES:
        raise SignatureUnreadable("its signature has values beyond their bounds")
    return SignedText(text[:at], statement, found["key"], signature)


def _lines(statement: Statement) -> tuple[str, ...]:
    return (
        f"weft-signature: {VERSION}",
        f"tenant: {statement.tenant}",
        f"target: {statement.target}",
        f"edges: {', '.join(statement.edges)}",
        f"order: {statement.order}",
        f"number: {statement.number}",
        f"withdraws: {', '.join(statement.withdraws) or NOTHING}",
    )

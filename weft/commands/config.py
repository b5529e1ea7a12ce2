"""``weft config``: describe the configuration files, and sign settings for edges."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import click
import msgspec

from weft.commands.common import json_option
from weft.commands.hub_streams import key_of
from weft.config.errors import ConfigError
from weft.config.load import check_overlay
from weft.config.models import EdgeConfig, HubConfig
from weft.config.pipelines import Pipeline
from weft.config.schema import schema as schema_of
from weft.config.signing import (
    KEY_FILE_BYTES_MAX,
    NAMES_MAX,
    NUMBER_MAX,
    ORDER_MAX,
    SUFFIX,
    CodeNotSigned,
    KeyUnusable,
    PublicKey,
    SignatureUnreadable,
    SignedText,
    Statement,
    check_code,
    code_message,
    code_signature,
    digest_of,
    make_key,
    message_of,
    read_bounded,
    read_public_keys,
    read_signed,
    sign,
    verifies,
    with_signature,
)
from weft.output import Failed, Refused, print_facts, print_json
from weft.protocols.lane import NAME_RULE, valid_name
from weft.protocols.link import TEXT_CHARACTERS_MAX
from weft.storage.filesystem import read_private_file, replace_private_file

# ``weft config keygen``, ``sign``, ``sign-code``, ``verify``: signatures of settings of edges, and of function files.
#
# They run where the private key is: neither a hub nor an edge needs it.

_FILE_BYTES_MAX = 1 << 20
file_argument = click.argument("file", type=click.Path(exists=True, dir_okay=False))
key_option = click.option(
    "--key",
    "key_file",
    required=True,
    type=click.Path(dir_okay=False),
    help="PEM file with the private key of Ed25519. No other user may be able to read it.",
)


@click.command("keygen")
@click.argument("name", type=click.Path(dir_okay=False))
def keygen(name: str) -> None:
    """Create an Ed25519 key pair: the private key in NAME.key, the public key for edges in NAME.pub.

    Neither file may exist. `openssl genpkey -algorithm ed25519` creates the same kind of key. Keep the private key away
    from hubs.
    """
    private, public = f"{name}.key", f"{name}.pub"
    for path in (private, public):
        if os.path.lexists(path):
            raise Refused(f"{path} exists already. Choose another name: replacing a key destroys the old one")
    try:
        private_pem, public_pem, key = make_key()
    except KeyUnusable as error:
        raise Refused(str(error)) from None
    replace_private_file(private, private_pem)
    with open(public, "xb") as file:
        file.write(public_pem)
    click.echo(f"made key {key}: {private} signs, and {public} is for config_signed_by and functions_signed_by")


@click.command("sign")
@file_argument
@key_option
@click.option(
    "--for", "whose", required=True, metavar="[TENANT/]NAME", help="Edge, or group, whose settings these are."
)
@click.option("--group", "is_group", is_flag=True, help="NAME is a group of edges, not an edge.")
@click.option(
    "--edges",
    multiple=True,
    metavar="PATTERN",
    help="With --group: edges that may use the settings, repeatable; `*` matches any characters.",
)
@click.option(
    "--order",
    type=click.IntRange(-ORDER_MAX, ORDER_MAX),
    default=0,
    show_default=True,
    help="Place of the group among others, as `weft hub group set CONFIG GROUP EDGES --order N` declares it.",
)
@click.option(
    "--number",
    type=click.IntRange(1, NUMBER_MAX),
    help="Number that is higher than those signed before for this target. Without it: the seconds since 1970.",
)
@click.option(
    "--withdraws", multiple=True, metavar="GROUP", help="Group whose settings these may replace on edges, repeatable."
)
@click.option(
    "--out", type=click.Path(dir_okay=False), help="File to write. Without it: FILE with `.signed` in its name."
)
def sign_settings(
    file: str,
    key_file: str,
    whose: str,
    *,
    is_group: bool,
    edges: tuple[str, ...],
    order: int,
    number: int | None,
    withdraws: tuple[str, ...],
    out: str | None,
) -> None:
    """Sign the settings in FILE for an edge, or with --group for a group, and write them with the signature appended.

    `weft hub config set` declares the written file. An edge accepts it if its `config_signed_by` has the public key and
    it has seen no higher number for that edge or group. An existing signature in FILE is replaced.

    \b
    weft config sign presses.yaml --key ops.key --for acme/presses --group --edges 'press-*'
    weft hub config set hub.yaml acme/presses presses.signed.yaml --group
    """
    tenant, name = key_of(whose)
    statement = Statement(
        tenant,
        f"{'group' if is_group else 'edge'} {name}",
        _edges(name, edges, is_group=is_group),
        order,
        int(time.time()) if number is None else number,
        tuple(f"group {each}" for each in withdraws),
    )
    for each in (tenant, name, *withdraws, *(pattern.replace("*", "x") for pattern in edges)):
        if not valid_name(each):
            raise Refused(f"{each!r} is not a valid name: {NAME_RULE}")
    if order and not is_group:
        raise Refused("--order is for groups: the settings of an edge apply after those of all its groups")
    if len(withdraws) > NAMES_MAX:
        raise Refused(f"at most {NAMES_MAX} groups can be withdrawn at once")
    text = _text(file)
    try:
        check_overlay(text)
    except ConfigError as error:
        raise Refused(f"{file}: {error}") from None
    key, signature = _signature(key_file, message_of(text, statement))
    signed = with_signature(text, statement, key, signature)
    if len(signed) > TEXT_CHARACTERS_MAX:
        raise Refused(f"{file}: with the signature it has {len(signed)} characters; the limit is {TEXT_CHARACTERS_MAX}")
    target = out if out is not None else "{}.signed{}".format(*os.path.splitext(file))
    with open(target, "w", encoding="utf-8", newline="") as written:
        written.write(signed)
    click.echo(f"signed {target} for {statement.target} of tenant {tenant}, number {statement.number}, with key {key}")


@click.command("sign-code")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False))
@key_option
def sign_code(files: tuple[str, ...], key_file: str) -> None:
    """Sign FILES that `python` functions run or open, each into a file beside it: score.py.sig for score.py.

    An edge with `functions_signed_by` runs a file only as it was signed. The signature covers its name and its content,
    not its folder: sign a file again after each change, and bring the signature with it.
    """
    for path in files:
        name = os.path.basename(path)
        if path.endswith(SUFFIX) or not name.isprintable():
            raise Refused(f"{path} cannot be signed: expected the file itself, with a name that can be printed")
        digest = digest_of(path)
        key, signature = _signature(key_file, code_message(name, digest))
        with open(f"{path}{SUFFIX}", "wb") as file:
            file.write(code_signature(name, digest, key, signature))
        click.echo(f"signed {path} with key {key}: {path}{SUFFIX}")


@click.command("verify")
@file_argument
@click.option(
    "--key",
    "key_files",
    required=True,
    multiple=True,
    type=click.Path(exists=True, dir_okay=False),
    help="PEM file with a public key, several times.",
)
@json_option
def verify(file: str, key_files: tuple[str, ...], *, as_json: bool) -> None:
    """Verify the signature in FILE, or for a function's file in FILE.sig, and show whom it is for.

    Only the edge knows if it has seen a later one.
    """
    known = read_public_keys(key_files)
    if known.problems:
        raise Refused("; ".join(known.problems))
    if os.path.exists(f"{file}{SUFFIX}"):
        try:
            check_code(file, digest_of(file), key_files)
        except CodeNotSigned as error:
            raise Failed(str(error)) from None
        facts: dict[str, object] = {"file": os.path.basename(file), "signed": True}
    else:
        facts = _facts(file, _checked(file, known.keys))
    if as_json:
        print_json(facts)
    else:
        print_facts(facts)


def _edges(name: str, edges: tuple[str, ...], *, is_group: bool) -> tuple[str, ...]:
    if is_group and not edges:
        raise Refused(
            "the signature covers the edges that may use the settings: name them with --edges, such as 'press-*'"
        )
    if edges and not is_group:
        raise Refused("--edges is for groups: the settings of an edge are for that edge")
    if len(edges) > NAMES_MAX:
        raise Refused(f"at most {NAMES_MAX} names and patterns of edges can be signed. Use patterns, such as 'press-*'")
    return edges if is_group else (name,)


def _text(file: str) -> str:
    try:
        text = read_bounded(file, _FILE_BYTES_MAX).decode()
        signed = read_signed(text)
    except UnicodeDecodeError:
        raise Refused(f"{file}: expected UTF-8 text. Save the file as UTF-8") from None
    except (SignatureUnreadable, ValueError) as error:
        raise Refused(f"{file}: {error}") from None
    text = text if signed is None else signed.text
    return text if text.endswith("\n") or not text else f"{text}\n"


def _signature(key_file: str, message: bytes) -> tuple[str, bytes]:
    try:
        pem = read_private_file(key_file, KEY_FILE_BYTES_MAX)
    except OSError as error:
        raise Refused(f"{key_file}: {error.strerror}") from None
    try:
        return sign(pem, message)
    except KeyUnusable as error:
        raise Refused(f"{key_file}: {error}") from None


def _checked(file: str, keys: Sequence[PublicKey]) -> SignedText:
    try:
        signed = read_signed(read_bounded(file, _FILE_BYTES_MAX).decode())
    except ValueError as error:
        raise Failed(f"{file}: {error}") from None
    if signed is None:
        raise Failed(f"{file} has no signature, and {file}{SUFFIX} does not exist")
    if not verifies(keys, signed.message, signed.signature):
        raise Failed(
            f"none of these keys verifies the signature in {file}. It names key {signed.key}; check the keys, or "
            "whether the file was changed"
        )
    return signed


def _facts(file: str, signed: SignedText) -> dict[str, object]:
    said = signed.statement
    return {
        "file": os.path.basename(file),
        "signed": True,
        "tenant": said.tenant,
        "target": said.target,
        "edges": ", ".join(said.edges),
        "order": said.order,
        "number": said.number,
        "withdraws": ", ".join(said.withdraws),
        "key": signed.key,
    }


@click.command()
@click.argument("kind", type=click.Choice(["edge", "hub", "pipeline"]))
def schema(kind: str) -> None:
    """Print the JSON Schema of an edge's or a hub's configuration or of a pipeline, for editors."""
    models: dict[str, type[msgspec.Struct]] = {"edge": EdgeConfig, "hub": HubConfig, "pipeline": Pipeline}
    print_json(schema_of(models[kind]))

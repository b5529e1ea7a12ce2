"""What the commands share: loading a configuration, reading a node's own status."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from config.errors import ConfigError, Finding
from config.load import Loaded, load
from config.units import Address, parse_bind
from weft.output import Failed, Refused

if TYPE_CHECKING:
    from config.models import EdgeConfig, HubConfig
    from storage.object_store import ObjectStore

STATUS_TIMEOUT_S = 10.0
STATUS_BYTES_MAX = 64 << 20
TOKEN_BYTES_MAX = 4096

Config = TypeVar("Config", bound=msgspec.Struct)

config_argument = click.argument("config_file", metavar="CONFIG", type=click.Path(dir_okay=False))
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
log_level_option = click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="How much to say on standard error.",
)


def load_edge(path: str) -> EdgeConfig:
    """The checked configuration of an edge node. ``Refused`` says what is wrong."""
    return loaded_edge(path).config


def loaded_edge(path: str) -> Loaded[EdgeConfig]:
    """The same, with the lines on which its values stand."""
    from config.models import EdgeConfig
    from edge_node.check import check

    return _load(path, EdgeConfig, check)


def load_hub(path: str) -> HubConfig:
    """The checked configuration of a hub node. ``Refused`` says what is wrong."""
    from cloud_hub.check import check
    from config.models import HubConfig

    return _load(path, HubConfig, check).config


def _load(path: str, model: type[Config], check: Callable[[Config], Sequence[Finding]]) -> Loaded[Config]:
    try:
        return load(path, model, check)
    except ConfigError as error:
        raise Refused(str(error)) from None


def store_options() -> dict[str, str]:
    """What a store is told besides its URI; credentials and region it finds in the environment by itself."""
    # Whoever writes an http:// endpoint means it, yet the store's libraries want to be told again.
    is_plain = os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")
    return {"AWS_ALLOW_HTTP": "true"} if is_plain else {}


def open_hub_store(uri: str) -> ObjectStore:
    """The store at ``uri``. ``Refused`` when it is no store."""
    from storage.object_store import StoreUnfit, open_store

    try:
        return open_store(uri, store_options())
    except (ValueError, StoreUnfit) as error:
        raise Refused(str(error)) from None


def get_status(bind: str, path: str, token_file: str | None = None) -> Any:
    """The JSON document that a running node of this machine serves at ``path``. ``Failed`` when there is no answer."""
    address = parse_bind(bind)
    if address.port == 0:
        raise Failed("the configuration lets the node take any free port, so nobody knows where to ask; name a port")
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.host, address.host)
    url = f"http://{Address(host, address.port)}{path}"
    request = urllib.request.Request(url)
    if token_file is not None:
        with open(token_file, encoding="ascii") as file:
            request.add_header("Authorization", f"Bearer {file.read(TOKEN_BYTES_MAX).strip()}")
    try:
        with urllib.request.urlopen(request, timeout=STATUS_TIMEOUT_S) as answer:
            return json.loads(answer.read(STATUS_BYTES_MAX))
    except urllib.error.HTTPError as error:
        raise Failed(f"{url} answered {error.code} {error.reason}: {_advice(error)}") from None
    except (OSError, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        reason = getattr(reason, "strerror", None) or reason
        raise Failed(f"{url} does not answer ({reason}); is the node running?") from None


def _advice(error: urllib.error.HTTPError) -> str:
    """What a hub says besides the status."""
    try:
        answer = json.loads(error.read(STATUS_BYTES_MAX))
        return f"{answer['error']}; {answer['advice']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "no reason given"

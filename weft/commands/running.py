"""A running hub, as commands ask it: the one of a configuration on this machine, or any by its URL or a login; and the
status of a node of this machine."""

from __future__ import annotations

import json
import os
import re
import time
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import click
import msgspec

from weft.client import Client, HubRefusal, HubUnreachable, pages
from weft.client.logins import HUB_VARIABLE, LoginsUnusable, find, of_environment, read
from weft.client.operations import Listed, Operations, Request
from weft.commands.common import Decorated, ExistingPath, load_hub, using
from weft.config.units import parse_bind
from weft.network.reload import read_token
from weft.network.tls import ClientTlsFiles, client_context, own_context
from weft.output import Failed, Refused
from weft.protocols.lane import valid_name

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from weft.config.models import HubConfig

Args = ParamSpec("Args")
AList = TypeVar("AList", bound=Listed)
T = TypeVar("T")
TIMEOUT_S, STATUS_TIMEOUT_S = 30.0, 10.0
STATUS_BYTES_MAX = 64 << 20
NOT_FOUND, TOO_MANY = 404, 429
WAITS_MAX, WAIT_S_MAX = 20, 99
"""Number of times that a request waits for as long as the hub asks, and the longest such time."""
ANOTHER_PROGRAM = "another program answers there. Check the address in the configuration"
UNNAMED = "name the hub: its CONFIG on this machine, its URL, or the name of a login (`weft login`); or set WEFT_HUB"

hub_argument = click.argument("hub", metavar="HUB")
any_hub_argument = click.argument("hub", metavar="[HUB]", required=False)
"""The only argument of a command: without it, WEFT_HUB names the hub."""


CA_FILE = "weft.ca_file"
"""Key of the option ``--ca-file`` in the context of a command."""


def access_options(token: str) -> Callable[[Decorated], Decorated]:
    """Return the options for access to a hub: ``--token-file``, and ``--ca-file``, which ``running_hub`` reads itself.

    Args:
        token: what the token's file has, for the help.
    """

    def keep(context: click.Context, _: click.Parameter, path: str | None) -> None:
        context.meta[CA_FILE] = path

    def decorate(command: Decorated) -> Decorated:
        authorities = click.option(
            "--ca-file",
            type=ExistingPath(dir_okay=False),
            expose_value=False,
            callback=keep,
            help="Authorities that a URL's or a login's certificate is trusted by (PEM); the system's by default.",
        )
        named = click.option("--token-file", type=ExistingPath(dir_okay=False), help=f"File with {token}.")
        return named(authorities(command))

    return decorate


class NotThere(Failed):
    """An error about something that the hub does not have (404)."""


class RunningHub(Operations):
    """A hub that runs. A method of an operation raises ``Failed`` without an answer.

    Args:
        port: its port on this machine, if a configuration of this machine names it.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        token_file: str | None = None,
        tls: ssl.SSLContext | None = None,
        port: int | None = None,
    ) -> None:
        self.url, self.port = url, port
        self.timeout_s = TIMEOUT_S
        """Longest wait for the hub's next bytes."""
        self._token, self._token_file, self._tls = token, token_file, tls

    @property
    def has_token(self) -> bool:
        """Return whether requests have a token."""
        return self._token is not None or self._token_file is not None

    def at(self, url: str, port: int | None = None) -> RunningHub:
        """Return another process of the hub."""
        return RunningHub(url.rstrip("/"), token=self._token, token_file=self._token_file, tls=self._tls, port=port)

    def beside(self, port: int) -> RunningHub:
        """Return the process with another port of this machine."""
        return self.at(f"{self.url.rpartition(':')[0]}:{port}", port)

    def client(self) -> Client:
        """Return a client of the hub."""
        return Client(
            self.url,
            token=self._token,
            token_file=self._token_file,
            tls=self._tls,
            timeout_s=self.timeout_s,
            bytes_max=STATUS_BYTES_MAX,
        )

    def _answer(self, request: Request[T], /) -> T:
        try:
            client = self.client()
            for waits_left in range(WAITS_MAX, -1, -1):
                try:
                    fetched = client.fetch(request.path, request.body, request.headers, method=request.method)
                    return request.read(fetched, self.url)
                except HubRefusal as refusal:
                    wait = refusal.retry_after_s
                    if not waits_left or refusal.status != TOO_MANY or wait is None or wait > WAIT_S_MAX:
                        raise self._failed(request, refusal) from None
                    time.sleep(wait)
        except HubUnreachable as error:
            raise Failed(str(error) if error.is_known else f"{error}; is the hub running?") from None
        except (OSError, ValueError) as error:  # a token or a certificate
            raise Failed(f"{self.url} cannot be asked ({error})") from None
        raise AssertionError("the last attempt ends with an answer or an error")

    def _failed(self, request: Request[Any], refusal: HubRefusal) -> Failed:
        failed = NotThere if refusal.status == NOT_FOUND and refusal.detail else Failed
        if request.body is None and request.method is None:
            advice = advice_on(request.path, refusal, has_token=self.has_token)
            return failed(f"{self.url}{request.path} answered {refusal.status} {refusal.reason}: {advice}")
        said = f"{refusal.detail}; {in_commands(refusal.advice)}" if refusal.detail else ANOTHER_PROGRAM
        return failed(f"the hub answered {refusal.status} {refusal.reason}: {said}")


def whole(part: str, ask: Callable[Args, AList], *args: Args.args, **query: Args.kwargs) -> AList:
    """Return a list of the API with all its pages joined: the last page, with the members of all.

    Args:
        part: name of the field with the members.
        ask: method of the operation.

    Raises:
        Failed: there is no answer, or no end of the list.
    """
    members, named = list[Any](), set[object]()
    for page in pages(ask, *args, **query):
        members += getattr(page, part)
        if page.next_after in named:
            raise Failed(
                f"the list of {part} does not continue after {page.next_after!r}. Is a hub of this release at that "
                "address?"
            )
        named.add(page.next_after)
        last: Any = page
    joined: AList = msgspec.structs.replace(last, **{part: members})
    return joined


def names_a_config(hub: str | None) -> bool:
    """Return whether a command's HUB is a configuration on this machine: neither a URL nor the name of a login."""
    hub = named(hub)
    return "://" not in hub and (not valid_name(hub) or (hub not in _logins() and os.path.exists(hub)))


def running_hub(hub: str | None, token_file: str | None) -> RunningHub:
    """Return the hub that a command's HUB names, or WEFT_HUB.

    Args:
        token_file: the option of that name. Without it, the token is that of the login, or of the environment.

    Raises:
        Refused: nothing names a hub, or what names it is wrong.
        Failed: the token's file has none.
    """
    hub = named(hub)
    if token_file is not None:
        _check_token_file(token_file)
    context = click.get_current_context(silent=True)
    ca_file = None if context is None else context.meta.get(CA_FILE)
    if names_a_config(hub):
        if ca_file is not None:
            raise Refused(f"--ca-file is for the URL of a hub, and {hub} names the hub's own certificate")
        if not os.path.exists(hub) and not hub.endswith((".yaml", ".yml")):
            raise Refused(f"{hub}: there is no such file. The URL of a hub begins with https://")
        config = load_hub(hub)
        certificate = certificate_of(config)
        try:
            token, token_file = (None, token_file) if token_file is not None else of_environment()
        except ValueError as error:
            raise Refused(str(error)) from None
        url = url_here(config.listen, certificate)
        return RunningHub(
            url, token=token, token_file=token_file, tls=tls_of(certificate), port=parse_bind(config.listen).port
        )
    try:
        found = find(hub, token_file)
    except (ValueError, LoginsUnusable) as error:
        raise Refused(str(error)) from None
    if ca_file is not None and not found.url.startswith("https://"):
        raise Refused(f"--ca-file needs TLS, and {found.url} has none: use a URL that begins with https://")
    if found.token_file is not None and token_file is None:
        _check_token_file(found.token_file)
    return RunningHub(
        found.url,
        token=found.token,
        token_file=found.token_file,
        tls=trusting(ca_file or found.ca_file, found.certificate, found.key),
    )


def trusting(ca_file: str | None, certificate: str | None = None, key: str | None = None) -> ssl.SSLContext | None:
    """Return the context that trusts a hub by a file of authorities, and shows it a client certificate; None for the
    system's authorities and no certificate."""
    if ca_file is None and certificate is None:
        return None

    try:
        return client_context(ClientTlsFiles(ca_file=ca_file, certificate=certificate, key=key))
    except OSError as error:
        raise Failed(str(error)) from None


def named(hub: str | None) -> str:
    if not (named := hub or os.environ.get(HUB_VARIABLE)):
        raise Refused(UNNAMED)
    return named


def _logins() -> dict[str, Any]:
    try:
        return dict(read())
    except LoginsUnusable as error:
        raise Refused(str(error)) from None


def _check_token_file(path: str) -> None:
    try:
        with using(path):
            read_token(path)
    except ValueError as error:
        raise Failed(str(error)) from None


# A node of this machine, asked by the address in its configuration.


def get_status(bind: str, path: str, token_file: str | None = None, certificate: str | None = None) -> Any:
    """Return the JSON document that a running node of this machine serves at ``path``. ``Failed`` when there is no
    answer.

    Args:
        certificate: the node's own, if it speaks TLS.
    """
    url = url_here(bind, certificate)
    try:
        token = None if token_file is None else read_token(token_file)
    except ValueError as error:
        raise Failed(str(error)) from None
    try:
        client = Client(
            url, token=token, tls=tls_of(certificate), timeout_s=STATUS_TIMEOUT_S, bytes_max=STATUS_BYTES_MAX
        )
        return json.loads(client.fetch(path).body)
    except HubRefusal as refusal:
        advice = advice_on(path, refusal, has_token=token is not None)
        raise Failed(f"{url}{path} answered {refusal.status} {refusal.reason}: {advice}") from None
    except HubUnreachable as error:
        raise Failed(str(error) if error.is_known else f"{error}; is the node running?") from None
    except (OSError, ValueError) as error:
        raise Failed(f"{url}{path} does not answer ({error}); is the node running?") from None


def url_here(bind: str, certificate: str | None) -> str:
    """Return the URL of a running node of this machine."""
    address = parse_bind(bind)
    if address.port == 0:
        raise Failed("the node uses any free port, so its address is unknown. Set a port in the configuration")
    return f"{'http' if certificate is None else 'https'}://{address.from_here}"


def tls_of(certificate: str | None) -> ssl.SSLContext | None:
    """Return the context that trusts a hub of this machine by its own certificate."""
    if certificate is None:
        return None
    return own_context(certificate)


def certificate_of(config: HubConfig) -> str | None:
    """Return the file of a hub's certificate; None if it speaks plain HTTP."""
    return None if config.tls is None else config.tls.certificate


def advice_on(path: str, refusal: HubRefusal, *, has_token: bool) -> str:
    """Return advice on a refusal, in the terms of a command line."""
    if not refusal.detail:
        return ANOTHER_PROGRAM
    scope = _SCOPES.get(path.partition("?")[0], "reader")
    makes = f"`weft hub token add CONFIG NAME --scope {scope} --to FILE`"
    if refusal.status == 401 and not has_token:
        return f"the hub requires a token. Provide one with --token-file or `weft login`; {makes} makes one"
    if refusal.status == 401:
        return f"{refusal.detail}. Give another one with --token-file; {makes} makes one"
    if refusal.status == 403:
        return f"{refusal.detail}. Give another one with --token-file: {refusal.advice}"
    return f"{refusal.detail}. {in_commands(refusal.advice)}"


def in_commands(advice: str) -> str:
    """Return a hub's advice with the commands for its requests."""
    return _REQUEST.sub(lambda found: f"`{_COMMANDS.get(found[1], found[0])}`", advice)


_COMMANDS = {
    "/v1/streams": "weft streams",
    "/v1/edges": "weft hub status",
    "/v1/status": "weft hub status",
    "/v1/nodes": "weft hub nodes",
    "/v1/pulls": "weft hub pulls",
    "/v1/messages?edge=NAME": "weft hub messages HUB NAME",
}
"""Request in the API's advice -> the command that shows the same."""
_REQUEST = re.compile(r"GET (/v1/[\w/?=]*\w)")

_SCOPES = {
    "/v1/status": "admin",
    "/v1/nodes": "admin",
    "/v1/troubles": "admin",
    "/v1/regions": "admin",
    "/v1/acts": "admin",
    "/metrics": "admin",
}
"""Page -> scope of the tokens that open it, where `reader` does not."""

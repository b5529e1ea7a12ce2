"""Address of a service of buckets, and the choice of TLS for it, from the options and the environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from weft.storage.object_store.errors import StoreUnfit


class EndpointNames(NamedTuple):
    """Names of the options and variables of one service."""

    endpoints: tuple[str, ...]
    """Names of the endpoint, the most specific first. As options they may lack ``prefix``."""
    allow_http: str
    prefix: str
    example: str


class Endpoint(NamedTuple):
    """The address that requests go to."""

    name: str
    """Option or variable that names it; empty for the service's own address."""
    url: str
    allows_http: bool
    """True if requests may be sent without TLS."""


def endpoint_of(names: EndpointNames, options: Mapping[str, str], environment: Mapping[str, str]) -> Endpoint:
    """Return the endpoint.

    One that begins with ``http://`` is sufficient to send requests without TLS. The libraries would also require an
    option, and report its absence as a "builder error".

    Args:
        options: the store's options by object_store's names; they override the environment.
        environment: the process's environment variables.

    Raises:
        StoreUnfit: the endpoint is not a URL, or ``names.allow_http`` forbids plain HTTP to it.
    """
    options = {name.upper(): value for name, value in options.items()}
    given = options.get(names.allow_http, environment.get(names.allow_http))
    allowed = (given or "").lower() in ("1", "true", "yes")
    name, url = _named(names, options, environment)
    if not url:
        return Endpoint("", "", allowed)
    scheme = urlsplit(url).scheme.lower()
    if scheme not in ("http", "https") or "://" not in url:
        raise StoreUnfit(f"{name}: expected a URL such as {names.example}; got {url!r}")
    if scheme == "http" and given and not allowed:
        raise StoreUnfit(
            f"{name} is {url}, without TLS, and {names.allow_http} is {given}: set it to true or use https"
        )
    return Endpoint(name, url, allowed or scheme == "http")


def _named(names: EndpointNames, options: Mapping[str, str], environment: Mapping[str, str]) -> tuple[str, str]:
    for source, spellings in ((options, ("", names.prefix)), (environment, ("",))):
        for name in names.endpoints:
            for prefix in spellings:
                if value := source.get(name.removeprefix(prefix)):
                    return name, value
    return "", ""

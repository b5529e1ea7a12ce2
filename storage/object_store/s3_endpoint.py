"""Choice of TLS for an S3 endpoint, from the options and the environment."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from weft.storage.object_store.errors import StoreUnfit

ALLOW_HTTP = "AWS_ALLOW_HTTP"
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
"""Names of the endpoint, the most specific first. As options they may lack their prefix ``AWS_``."""
_PREFIX = "AWS_"


def allows_http(options: Mapping[str, str], environment: Mapping[str, str]) -> bool:
    """Return whether requests may be sent without TLS.

    An endpoint that begins with ``http://`` is sufficient. The libraries would also require ``AWS_ALLOW_HTTP``, and
    report its absence as a "builder error".

    Args:
        options: the store's options by object_store's names; they override the environment.
        environment: the process's environment variables.

    Raises:
        StoreUnfit: the endpoint is not a URL, or ``AWS_ALLOW_HTTP`` forbids plain HTTP to it.
    """
    options = {name.upper(): value for name, value in options.items()}
    given = options.get(ALLOW_HTTP, environment.get(ALLOW_HTTP))
    allowed = (given or "").lower() in ("1", "true", "yes")
    name, endpoint = endpoint_of(options, environment)
    if not endpoint:
        return allowed
    scheme = urlsplit(endpoint).scheme.lower()
    if scheme not in ("http", "https") or "://" not in endpoint:
        raise StoreUnfit(f"{name}: expected a URL such as https://minio.example.com; got {endpoint!r}")
    if scheme == "http" and given and not allowed:
        raise StoreUnfit(f"{name} is {endpoint}, without TLS, and {ALLOW_HTTP} is {given}: set it to true or use https")
    return allowed or scheme == "http"


def endpoint_of(options: Mapping[str, str], environment: Mapping[str, str]) -> tuple[str, str]:
    """Return name and value of the endpoint; two empty texts mean Amazon's own. Args as ``allows_http``."""
    options = {name.upper(): value for name, value in options.items()}
    for source, spellings in ((options, ("", _PREFIX)), (environment, ("",))):
        for name in ENDPOINTS:
            for prefix in spellings:
                if value := source.get(name.removeprefix(prefix)):
                    return name, value
    return "", ""

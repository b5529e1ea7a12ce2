"""Services that keep buckets: what distinguishes S3, Google Cloud Storage and Azure Blob Storage from each other.

With ``bucket``, the only modules that import obstore.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from weft.config.units import BUCKETS, Address
from weft.storage.object_store.protocol import StoreUnfit

# Messages for the errors of obstore.

_NO_KEY = "{} in the environment nor options, and this machine has no role: give a key"
NO_KEYS = {
    "/latest/api/token": _NO_KEY.format("AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are neither"),
    "/computeMetadata/": _NO_KEY.format("GOOGLE_SERVICE_ACCOUNT and GOOGLE_SERVICE_ACCOUNT_KEY are neither"),
    "/metadata/identity/": _NO_KEY.format("AZURE_STORAGE_ACCOUNT_KEY and AZURE_STORAGE_SAS_KEY are neither"),
}
"""Part of the path at which obstore asks for the machine's role, if it has found no key -> the message."""
# "in 1.2ms" or ", after 5 retries, max_retries: 5, ..." may be between address and cause.
_TRIED = re.compile(r".*Error performing (\w+) (\w+://[^,\s]+)(?:,? .*)? - (.+)")
_REFUSED = "Server returned non-2xx status code: "
_DOCUMENT = re.compile(r"<\?xml|<Error>")
_SAID = re.compile(r"<Error>.*?<Code>([^<]+)</Code>.*?<Message>([^<]+)</Message>", re.DOTALL)
"""S3's answer to a refused request. Other elements repeat parts of the request, including its signature."""
_UNSENT = "HTTP error: "
_CAUSES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"kind: ConnectionRefused"), "connection refused, so nothing listens there"),
    (re.compile(r'"dns error"'), "the name of the host cannot be resolved (DNS)"),
    (re.compile(r"InvalidMessage\("), "the server does not speak TLS there; is it http:// instead of https://?"),
    (
        re.compile(r"InvalidCertificate\(\s*(?:Other\(\s*OtherError\(\s*)?(\w+)"),
        "TLS failed, the server's certificate is not accepted ({})",
    ),
    (re.compile(r"kind: Timeout|TimedOut"), "no answer in time"),
    (
        re.compile(r"kind: (?:ConnectionReset|ConnectionAborted|BrokenPipe|UnexpectedEof)|IncompleteMessage"),
        "the server closed the connection; is it https:// instead of http://?",
    ),
    (re.compile(r'message: "([^"\n]{1,200})"'), "{}"),
)
"""Causes of a request without an answer: their marks in obstore's debug text, and their messages."""


def sentence(error: BaseException, endpoint: str = "") -> str:
    """Return the request, the address and the cause: the store's own message, if there is one. Only obstore's pages of
    debug text contain the cause of a request without an answer.

    Args:
        endpoint: name of the option or variable with the address; empty for Amazon's own.
    """
    text = str(error)
    first = text.partition("\n")[0]
    for path, advice in NO_KEYS.items():
        if path in first:
            return advice
    if (tried := _TRIED.fullmatch(first)) is None:
        return first
    cause = tried[3].removeprefix(_REFUSED)
    if cause.startswith(_UNSENT):
        named = f" (the address is from {endpoint})" if endpoint else ""
        return f"{tried[1]} {tried[2]} failed: {_why_unsent(text) or cause}{named}"
    if document := _DOCUMENT.search(cause):
        cause = cause[: document.start()].rstrip(" :")
        if said := _SAID.search(text):
            cause = f"{cause}, {said[1]}: {said[2].strip().rstrip('.')}"
    return f"{tried[1]} {tried[2]} failed: {cause}"


_NOT_THE_KEY = ("RequestTimeTooSkewed", "ExpiredToken", "InvalidToken")
"""Answers of 403 that another clock or a new session ends."""


def is_denied(error: BaseException) -> bool:
    """Return whether the store answered that the key has no right. obstore has a class for that of objects alone: a
    list that is refused is an error of no kind."""
    from obstore.exceptions import GenericError, PermissionDeniedError

    text = str(error)
    if any(each in text for each in _NOT_THE_KEY):
        return False
    if isinstance(error, PermissionDeniedError):
        return True
    return isinstance(error, GenericError) and f"{_REFUSED}403 Forbidden" in text.partition("\n")[0]


def _why_unsent(debugging: str) -> str:
    """Return the cause of a request without an answer; empty if the debug text has no known one."""
    for mark, words in _CAUSES:
        if found := mark.search(debugging):
            return words.format(*found.groups())
    return ""


# Address of a service of buckets, and the choice of TLS for it, from the options and the environment.


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


try:
    from obstore.exceptions import BaseError
    from obstore.store import AzureStore, GCSStore, S3Store
except ImportError as missing:  # pragma: no cover
    raise StoreUnfit('a bucket needs obstore, which is not installed: pip install "weft-fabric[hub]"') from missing

CONNECT_SECONDS_MAX = 5
REQUEST_SECONDS_MAX = 30
READ_RETRY_SECONDS_MAX = 30


class Overlap:
    """Headers by which half-sent PUTs to a signed URL are conditional."""

    create = ("If-None-Match", "*")
    swap = "If-Match"

    def __init__(self, *others: tuple[str, str]) -> None:
        self.others = others
        """Further headers that every PUT needs."""


@dataclass(frozen=True)
class Service:
    """One kind of buckets."""

    scheme: str
    names: EndpointNames
    client: Callable[..., Any]
    """Class of obstore for it."""
    defaults: tuple[tuple[str, str], ...] = ()
    """Options of obstore's class that callers may override."""
    version: str = "e_tag"
    """Part of obstore's facts that identifies the content of an object for a swap."""
    suffix_ranges: bool = True
    """True if a range may be counted from the end of an object; otherwise its length is asked for first."""
    overlap: Overlap | None = None
    """None where a signed URL does not permit further headers."""
    copies_later: bool = False
    """True if a copy may be answered before it has ended."""
    required: tuple[tuple[tuple[str, ...], str], ...] = ()
    """Options or variables of which one must be given, each with the advice."""

    @property
    def what(self) -> str:
        """Return the name of the service."""
        return BUCKETS[self.scheme]


S3 = Service(
    "s3",
    EndpointNames(
        ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
        "AWS_ALLOW_HTTP",
        "AWS_",
        "https://minio.example.com",
    ),
    S3Store,
    defaults=(("aws_copy_if_not_exists", "multipart"),),
    overlap=Overlap(),
)
GOOGLE = Service(
    "gs",
    EndpointNames(("GOOGLE_BASE_URL",), "GOOGLE_ALLOW_HTTP", "GOOGLE_", "https://storage.example.com"),
    GCSStore,
    # Its conditions name generations, and an etag may be of the content alone.
    version="version",
    # Its own headers must be signed, and a signed URL of obstore signs the host alone.
    overlap=None,
)
AZURE = Service(
    "az",
    EndpointNames(
        ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"), "AZURE_ALLOW_HTTP", "AZURE_", "https://blob.example.com"
    ),
    AzureStore,
    suffix_ranges=False,
    overlap=Overlap(("x-ms-blob-type", "BlockBlob")),
    copies_later=True,
    required=(
        (
            ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_ACCOUNT_NAME", "ACCOUNT_NAME", "AZURE_STORAGE_USE_EMULATOR"),
            "name the storage account in AZURE_STORAGE_ACCOUNT_NAME",
        ),
    ),
)
SERVICES = {service.scheme: service for service in (S3, GOOGLE, AZURE)}


@dataclass(frozen=True)
class BucketPlace:
    """A bucket, or a prefix in one, with the options that open it."""

    service: Service
    bucket: str
    prefix: str
    options: Mapping[str, str]
    endpoint: Endpoint

    @property
    def uri(self) -> str:
        """Return the URI, which deltalake takes, too."""
        return f"{self.service.scheme}://{self.bucket}/{self.prefix}".rstrip("/")

    @property
    def is_remote(self) -> bool:
        """Return whether the service has a clock of its own: a server on this machine has this machine's."""
        return not Address(urlsplit(self.endpoint.url).hostname or "", 0).is_loopback

    @property
    def options_elsewhere(self) -> dict[str, str]:
        """Return the options for deltalake and pyarrow. For an endpoint without TLS, they allow plain HTTP."""
        options = dict(self.options)
        if self.endpoint.allows_http:
            # deltalake knows the client's own name of the option for all services.
            # ``http://`` is leave enough: no one writes it by accident where the store has TLS, because the store
            # would not answer.
            options[self.service.names.allow_http if self.service is S3 else "ALLOW_HTTP"] = "true"
        return options

    def open(self, retries: int) -> Any:
        """Return obstore's client, which repeats a request at most ``retries`` times.

        Raises:
            StoreUnfit: an option is not valid.
        """
        config = {name.lower(): value for name, value in self.options.items()}
        client: dict[str, Any] = {
            "timeout": timedelta(seconds=REQUEST_SECONDS_MAX),
            "connect_timeout": timedelta(seconds=CONNECT_SECONDS_MAX),
        }
        # For obstore this is an option of the client, not of the bucket. It reads other missing options from the
        # environment by itself.
        for name in (self.service.names.allow_http, "ALLOW_HTTP"):
            config.pop(name.lower(), None)
        if self.endpoint.allows_http:
            client["allow_http"] = True
        config = {**dict(self.service.defaults), **config}
        retry = {"max_retries": retries, "retry_timeout": timedelta(seconds=READ_RETRY_SECONDS_MAX)}
        try:
            return self.service.client(
                self.bucket, prefix=self.prefix or None, config=config, client_options=client, retry_config=retry
            )
        except (BaseError, ValueError) as error:
            raise StoreUnfit(f"{self.service.scheme}://{self.bucket}: {sentence(error)}") from error


def bucket_place(service: Service, bucket: str, prefix: str, options: Mapping[str, str]) -> BucketPlace:
    """Return the place of a store.

    Args:
        bucket: its name; a container's at Azure.
        prefix: the store's place in the bucket; '' for its root.
        options: object_store's names in capitals, as ``open_store`` describes.

    Raises:
        StoreUnfit: an option is missing or cannot be used.
    """
    given = {name.upper() for name in options} | set(os.environ)
    for names, advice in service.required:
        if not given & set(names):
            raise StoreUnfit(f"{service.scheme}://{bucket}: {advice}")
    return BucketPlace(service, bucket, prefix, dict(options), endpoint_of(service.names, options, os.environ))

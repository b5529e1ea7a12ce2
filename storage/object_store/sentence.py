"""Messages for the errors of obstore."""

from __future__ import annotations

import re

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


def _why_unsent(debugging: str) -> str:
    """Return the cause of a request without an answer; empty if the debug text has no known one."""
    for mark, words in _CAUSES:
        if found := mark.search(debugging):
            return words.format(*found.groups())
    return ""

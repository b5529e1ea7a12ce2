"""Sentences for the errors of obstore."""

from __future__ import annotations

import re

MACHINE_ROLE_PATH = "/latest/api/token"
"""Path at which obstore asks for the machine's role, once it has found no key."""
NO_KEY = (
    "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are neither in the environment nor options, "
    "and this machine has no role: give a key"
)
# "in 1.2ms" or ", after 5 retries, max_retries: 5, ..." stands between address and cause.
_TRIED = re.compile(r".*Error performing (\w+) (\w+://[^,\s]+)(?:,? .*)? - (.+)")
_REFUSED = "Server returned non-2xx status code: "
_DOCUMENT = re.compile(r"<\?xml|<Error>")
_SAID = re.compile(r"<Error>.*?<Code>([^<]+)</Code>.*?<Message>([^<]+)</Message>", re.DOTALL)
"""S3's answer to what it refuses. Other elements repeat parts of the request, its signature among them."""


def sentence(error: BaseException) -> str:
    """Return what was asked of which address, and the cause: what the store says itself, where it does. obstore appends
    pages of debugging to that."""
    text = str(error)
    first = text.partition("\n")[0]
    if MACHINE_ROLE_PATH in first:
        return NO_KEY
    if (tried := _TRIED.fullmatch(first)) is None:
        return first
    cause = tried[3].removeprefix(_REFUSED)
    if document := _DOCUMENT.search(cause):
        cause = cause[: document.start()].rstrip(" :")
        if said := _SAID.search(text):
            cause = f"{cause}, {said[1]}: {said[2].strip().rstrip('.')}"
    return f"{tried[1]} {tried[2]} failed: {cause}"

"""Sentences for the errors of obstore."""

from __future__ import annotations

import pytest

from weft.storage.object_store.services import NO_KEYS, sentence

ASKED = "Generic S3 error: Error performing GET http://127.0.0.1:17070/b/k"
DEBUG = "\n\nDebug source:\nGeneric {\n    body: <Error><Code>Other</Code><Message>of debugging</Message></Error>\n}"
DOCUMENT = """<?xml version="1.0" encoding="UTF-8"?>
<Error><Code>AccessDenied</Code><Message>Access Denied.</Message><StringToSign>secret</StringToSign></Error>"""


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            f"{ASKED} in 1.2ms - Server returned non-2xx status code: 403 Forbidden: {DOCUMENT}{DEBUG}",
            "GET http://127.0.0.1:17070/b/k failed: 403 Forbidden, AccessDenied: Access Denied",
        ),
        (
            "The operation lacked the necessary privileges to complete for path b/k: Error performing GET "
            f"http://127.0.0.1:17070/b/k in 1.2ms - Server returned non-2xx status code: 403 Forbidden: {DOCUMENT}",
            "GET http://127.0.0.1:17070/b/k failed: 403 Forbidden, AccessDenied: Access Denied",
        ),
        (
            f"{ASKED}, after 5 retries, max_retries: 5 - Server returned non-2xx status code: 503 Busy: later{DEBUG}",
            "GET http://127.0.0.1:17070/b/k failed: 503 Busy: later",
        ),
        (
            f"{ASKED} in 3ms - Server returned non-2xx status code: 400 Bad Request: <?xml version='1.0'?>\n<html>",
            "GET http://127.0.0.1:17070/b/k failed: 400 Bad Request",
        ),
        (
            f"{ASKED} in 3ms - HTTP error: error sending request{DEBUG}",
            "GET http://127.0.0.1:17070/b/k failed: HTTP error: error sending request",
        ),
        (
            f'{ASKED} in 3ms - HTTP error: error sending request{DEBUG} Connect, ConnectError(\n "dns error",\n Custom',
            "GET http://127.0.0.1:17070/b/k failed: the name of the host cannot be resolved (DNS)",
        ),
        (
            f"{ASKED} in 30s - HTTP error: error sending request{DEBUG} HttpError {{ kind: Timeout, source: TimedOut",
            "GET http://127.0.0.1:17070/b/k failed: no answer in time",
        ),
        (
            f"{ASKED} in 3ms - HTTP error: error sending request{DEBUG} InvalidCertificate(\n UnknownIssuer,\n)",
            "GET http://127.0.0.1:17070/b/k failed: TLS failed, the server's certificate is not accepted "
            "(UnknownIssuer)",
        ),
        (
            f'{ASKED} in 3ms - HTTP error: error sending request{DEBUG} Os {{ code: 113, message: "No route" }}',
            "GET http://127.0.0.1:17070/b/k failed: No route",
        ),
        (
            "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 2s - timed out",
            NO_KEYS["/latest/api/token"],
        ),
        ("Generic URL error: unable to parse" + DEBUG, "Generic URL error: unable to parse"),
    ],
)
def test_the_cause_is_what_the_store_says(given: str, text: str) -> None:
    assert sentence(OSError(given)) == text

"""Requests that were stored in part, and go on under another schema."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.edge_node.ingest.test_payload_answers import post
from tests.edge_node.ingest.test_payload_checks import BAD, GOOD, running
from weft.edge_node.servers.http.idempotency import IdempotencyKeys, Once, RememberedAnswer
from weft.edge_node.servers.http.storing import Storing

pytestmark = pytest.mark.slow


async def test_a_request_that_goes_on_says_what_is_stored_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was stored in part, then the node ended, and came back with a schema that refuses."""
    path, fields = "/v1/topics/refuse/a", {"Content_Type": "application/json", "Idempotency_Key": "k"}
    body = b"[%b,%b]" % (GOOD, BAD)
    async with running(tmp_path) as node:
        status, told = await post(node, path, body, **fields)
        assert (status, "nothing of the request is stored" in told["detail"]) == (400, True)
        fingerprint = list[bytes]()

        def begun(_keys: IdempotencyKeys, _owner: object, _key: str) -> RememberedAnswer:
            return RememberedAnswer(fingerprint[0], 0, ((0, 1),), 1, rest_at=2)

        def repeats(_storing: Storing, _exchange: object, once: Once, _answer: object) -> bool:
            fingerprint.append(once.fingerprint)
            return False

        monkeypatch.setattr(Storing, "repeats", repeats)
        monkeypatch.setattr(IdempotencyKeys, "find", begun)
        status, told = await post(node, path, body, **fields)
        assert (status, "of the request, 1 messages are stored" in told["detail"]) == (400, True)

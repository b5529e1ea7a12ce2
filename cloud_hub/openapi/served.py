"""``/v1/openapi.json`` and ``/v1/whoami``: the API tells what it offers, and what a token opens."""

from __future__ import annotations

import asyncio

import msgspec
from aiohttp import web

from weft.cloud_hub.api.access import Access
from weft.cloud_hub.api.identity.certificates import ReaderCertificate
from weft.cloud_hub.api.views import moment
from weft.cloud_hub.cluster.membership import software
from weft.cloud_hub.openapi.edges import WhoAmI
from weft.protocols.link import PROTOCOL_VERSION

ANONYMOUS = "anonymous"
"""Scope of everyone at a hub without tokens."""


class SelfDescription:
    """Handlers of the two requests. A token of any scope opens them."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._document: bytes | None = None

    def add_to(self, application: web.Application) -> None:
        """Add the requests to the application of the API."""
        application.add_routes(
            [web.get("/v1/openapi.json", self._get_document), web.get("/v1/whoami", self._get_whoami)]
        )

    async def _get_document(self, request: web.Request) -> web.Response:
        self._access.reader(request)
        if self._document is None:
            self._document = await asyncio.to_thread(_encoded)
        return web.Response(body=self._document, content_type="application/json")

    async def _get_whoami(self, request: web.Request) -> web.Response:
        identity = self._access.reader(request)
        if identity is None:
            answer = WhoAmI(
                token=None, scope=ANONYMOUS, tenant="default", edge=None, until=None, certificate=None, rights=[],
                software=software(), link_protocol=PROTOCOL_VERSION,
            )  # fmt: skip
        else:
            certificate = identity.common_name if isinstance(identity, ReaderCertificate) else None
            answer = WhoAmI(
                token=identity.name if certificate is None else None, scope=identity.scope.value,
                tenant=identity.tenant, edge=identity.edge, until=moment(self._access.until(identity)),
                certificate=certificate, rights=identity.rights.texts, software=software(),
                link_protocol=PROTOCOL_VERSION,
            )  # fmt: skip
        return web.Response(body=msgspec.json.encode(answer) + b"\n", content_type="application/json")


def _encoded() -> bytes:
    from weft.cloud_hub.openapi.document import document

    return msgspec.json.encode(document()) + b"\n"

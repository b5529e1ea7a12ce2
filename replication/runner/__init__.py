"""The link machines over aiohttp WebSockets: ``run_link`` at an edge, ``serve_link`` at a hub."""

import weft.replication.runner.light_aiohttp
from weft.replication.events import LinkRefused
from weft.replication.flow_control import LINK_PATH
from weft.replication.runner.connect import run_link
from weft.replication.runner.serve import Beats, LinkHandler, LinkSession, serve_link
from weft.replication.runner.settings import ConfigReceiver, LinkIdentity, LinkSettings, no_token

__all__ = [
    "LINK_PATH",
    "Beats",
    "ConfigReceiver",
    "LinkHandler",
    "LinkIdentity",
    "LinkRefused",
    "LinkSession",
    "LinkSettings",
    "no_token",
    "run_link",
    "serve_link",
]

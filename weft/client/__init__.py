"""A client of a hub's API: a typed method for each operation, thin over the document that describes them."""

from weft.client.client import Client, pages
from weft.client.operations import Fetched, HubError, HubRefusal, HubUnreachable, Rows

__all__ = ["Client", "Fetched", "HubError", "HubRefusal", "HubUnreachable", "Rows", "pages"]

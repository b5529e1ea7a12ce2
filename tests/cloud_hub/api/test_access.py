"""Owners that are charged for the requests of readers."""

from __future__ import annotations

import pytest
from aiohttp.test_utils import make_mocked_request

from weft.bounds import Owner, OwnerKind
from weft.cloud_hub.api.access import Access
from weft.cloud_hub.declared.credentials import Credentials


@pytest.mark.parametrize(
    ("remote", "owner"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
    ],
)
def test_without_tokens_all_addresses_of_one_customer_share_a_budget(remote: str, owner: str) -> None:
    access = Access(Credentials(None, False, lambda: 0), open_to_network=True)
    request = make_mocked_request("GET", "/v1/streams").clone(remote=remote)
    assert access.owner(request) == Owner(OwnerKind.ADDRESS, owner)

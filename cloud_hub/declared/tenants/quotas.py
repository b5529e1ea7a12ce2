"""The declared quotas of tenants, as a hub process knows them."""

from __future__ import annotations

from weft.cloud_hub.declared.documents import TENANT, Quotas, TenantDocument, UnreadableDocument, decode
from weft.storage.cluster_log.state import ClusterState

NONE = Quotas()


class DeclaredQuotas:
    """Quotas by tenant. A document that this release cannot read sets none, and is named."""

    def __init__(self) -> None:
        self._of: dict[str, Quotas] = {}
        self.unusable: dict[str, str] = {}
        """Names of tenants whose declaration cannot be read, each with the reason."""

    def refresh(self, state: ClusterState) -> bool:
        """Take over the declarations of the cluster log. Return whether quotas are others than before."""
        before, self._of, self.unusable = self._of, {}, {}
        for name, fact in state.facts(TENANT).items():
            try:
                found = decode(fact.document, TenantDocument).quotas
            except UnreadableDocument as error:
                self.unusable[name] = str(error)
                continue
            if found != NONE:
                self._of[name] = found
        return self._of != before

    def of(self, tenant: str) -> Quotas:
        """Return the quotas of a tenant; those about which nothing is declared are None."""
        return self._of.get(tenant, NONE)

"""At a tenant's quota of table bytes its tables stand, others continue, and no record is lost."""

from __future__ import annotations

from tests.cloud_hub.tables.logs import LANE, OTHER, LogWriter, Run, contents, expected
from weft.cloud_hub.facts.tenants import DeclaredQuotas, Quotas
from weft.cloud_hub.quotas import TenantSizes
from weft.storage.object_store import ObjectStore
from weft.storage.table_writer.service import TableService
from weft.storage.table_writer.settings import TableTerms


async def test_tables_at_the_quota_stand_and_go_on_once_it_is_raised(directory: ObjectStore) -> None:
    log, quotas = await LogWriter.open(directory), DeclaredQuotas()
    sizes = TenantSizes(directory, quotas)
    service = TableService(directory, log.cluster, terms=TableTerms(held=sizes.held))
    await log.append(0, Run(LANE, 0, 3))
    assert await service.run_once() == 3
    quotas._of = {LANE.tenant: Quotas(table_bytes=1)}
    await sizes.look([(LANE.tenant, LANE.stream)])
    assert (sizes.of(LANE.tenant) or 0) > 1
    await log.append(0, Run(LANE, 3, 5))
    await log.append(1, Run(OTHER, 0, 4))
    assert await service.run_once() == 0
    (status,) = service.status()
    assert status.lag_records == 9
    assert "its quota is 1B" in (status.error or "")
    assert "weft hub tenant set" in (status.error or "")
    assert await service.first_untabled(0) is None, "nothing of the log is deleted meanwhile"
    assert contents(directory) == expected({0: [Run(LANE, 0, 3)]})
    quotas._of = {LANE.tenant: Quotas(table_bytes=1 << 40)}
    assert await service.run_once() == 9
    assert service.status()[0].error is None
    assert contents(directory) == expected({0: [Run(LANE, 0, 3), Run(LANE, 3, 5)], 1: [Run(OTHER, 0, 4)]})


async def test_tenants_without_the_quota_cost_no_listing(directory: ObjectStore) -> None:
    quotas = DeclaredQuotas()
    sizes = TenantSizes(directory, quotas)
    await sizes.look([(LANE.tenant, LANE.stream)])
    assert sizes.of(LANE.tenant) is None
    assert sizes.held((LANE.tenant, LANE.stream)) is None

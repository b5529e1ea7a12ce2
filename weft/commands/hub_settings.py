"""Settings of a hub node from its configuration."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import msgspec

from weft.config.units import Address, parse_bind

if TYPE_CHECKING:
    from weft.cloud_hub.settings import CertificateRights, HubSettings, JwtSettings, RegionSettings
    from weft.config.links import Region
    from weft.config.models import HubConfig, Kafka
    from weft.network.admission import AdmissionLimits
    from weft.network.tls import TlsFiles

COMMIT_INTERVAL_FOLDER_S = 0.25
COMMIT_INTERVAL_CHEAP_S = 0.04
"""The same while commits are cheap. A record waits half of it on average, so that most are durable within 50 ms."""
SNAPSHOT_CHUNKS_CHEAP = 1000
"""Number of chunks behind a snapshot then: a snapshot has the whole state, and would come every 8 seconds."""
COMMIT_INTERVAL_BUCKET_S = 1.0
"""Interval of commits where each costs money. Edges keep records until they are acknowledged: a later acknowledgement
only delays the release of disk space and the moment of completeness."""
ROUND_S = 60.0
"""Longest time that a round of the tables takes to write, for those who wait for it."""
TABLE_INTERVAL_FOLDER_S = 10.0
TABLE_INTERVAL_BUCKET_S = 120.0
"""Interval of table steps where each costs money: bench/hub/costs.py computes the cost of a month."""


def settings_of(config: HubConfig, process: int = 0, processes: int = 1) -> HubSettings:
    """Return the settings of one of the hub's processes from its configuration."""
    from weft.cloud_hub.settings import HubSettings, SequencerSettings, cores
    from weft.config.models import Kafka, Tables

    tables = config.tables or Tables()
    host, port = address = parse_bind(config.listen)
    kafka = config.kafka or Kafka()
    kafka_host, kafka_port = parse_bind(kafka.listen)
    return HubSettings(
        store=config.store,
        host=host,
        port=port + process,
        process=process,
        processes=processes,
        cores=cores() / processes,
        advertise=config.advertise or (),
        shards=config.shards,
        shards_max=config.shards_max,
        jwt=_jwt(config),
        tokens_required=config.anonymous == "never",
        open_to_network=config.anonymous == "allowed_beyond_loopback",
        tls=_tls(config),
        certificate_readers=_certificate_readers(config),
        edges_need_certificate=config.tls is not None and config.tls.client_certificate == "required",
        admission=_admission(config),
        hosts=() if config.hosts is None and address.is_loopback else config.hosts,
        sequencer=SequencerSettings(
            commit_interval_s=_commit_interval_s(config),
            commit_interval_min_s=COMMIT_INTERVAL_CHEAP_S if _is_paced(config) else None,
            snapshot_chunks=SNAPSHOT_CHUNKS_CHEAP if _is_paced(config) else SequencerSettings.snapshot_chunks,
            mark_interval_s=config.mark_interval_s,
            chunk_bytes_max=config.chunk_bytes_max,
            pending_bytes_max=config.limits.pending_bytes,
            lanes_max=config.limits.lanes,
            lanes_per_edge_max=config.limits.lanes_per_edge,
            lanes_per_tenant_max=config.limits.lanes_per_tenant,
            streams_per_tenant_max=config.limits.streams_per_tenant,
            topic_bytes_per_edge_max=config.limits.edge_topics_bytes,
            origin_bytes_per_edge_max=config.limits.edge_origins_bytes,
            unavailable_after_s=config.unavailable_after_s,
        ),
        links_max=config.limits.links,
        idle_connections_max=config.limits.idle_connections,
        connections_per_address_max=config.limits.connections_per_address,
        links_per_token_max=config.limits.links_per_token,
        messages_per_s=config.messages_per_second,
        link_window_bytes=config.limits.window_bytes,
        link_ping_interval_s=config.ping_interval_s,
        link_silence_s=config.silence_s,
        batch_bytes_max=config.limits.batch_bytes,
        record_bytes_max=config.limits.record_bytes,
        response_bytes_max=config.limits.response_bytes,
        peers=config.peers,
        retired_after_s=config.retired_after_s,
        dropped_after_s=config.dropped_after_s,
        regions={name: _region(region) for name, region in config.regions.items()},
        retain_log_s=config.retain_log_s,
        table_interval_s=_table_interval_s(config),
        table_write_bytes=tables.write_at,
        table_write_after_s=tables.write_after_s,
        iceberg="iceberg" in tables.formats,
        iceberg_interval_s=tables.iceberg_interval_s,
        table_joined_bytes=tables.joined_size,
        table_vacuum_after_s=tables.vacuum_after_s,
        sharing=config.sharing,
        sharing_bytes_per_s=config.limits.sharing_bytes,
        sql=config.sql,
        sql_bytes=config.limits.sql_bytes,
        kafka_host=kafka_host,
        kafka_port=None if config.kafka is None else _port_of(kafka_port, process),
        kafka_advertise=_advertised_to_kafka(kafka, process),
        tracing=config.tracing,
    )


def _port_of(first: int, process: int) -> int:
    """Return the port of a process, given the first one's: 0 is any free port for each."""
    return first + process if first else 0


def _advertised_to_kafka(kafka: Kafka, process: int) -> Address | None:
    if kafka.advertise is None:
        return None
    host, port = parse_bind(kafka.advertise)
    return Address(host, _port_of(port, process))


def _region(region: Region) -> RegionSettings:
    from weft.cloud_hub.settings import RegionSettings
    from weft.network.reload import read_token
    from weft.network.tls import ClientTlsFiles
    from weft.replication.flow_control import SenderSettings
    from weft.replication.liveness import SECOND
    from weft.replication.policy import BudgetRule, StreamWindows
    from weft.replication.runner.settings import LinkSettings, no_token

    times, budget = region.schedule, region.budget
    return RegionSettings(
        LinkSettings(
            urls=region.to,
            token=no_token if region.token_file is None else partial(read_token, region.token_file),
            tls=ClientTlsFiles(ca_file=region.ca_file, certificate=region.certificate, key=region.key),
            redirects=region.redirects,
            sender=SenderSettings(mark_interval=int(region.mark_interval_s * SECOND), cluster_id=region.cluster or ""),
        ),
        tenant=region.tenant,
        streams=region.streams,
        forwards=region.forward_relayed,
        rate=region.rate or 0,
        every_s=region.every_s,
        schedule=() if times is None else (StreamWindows.of(("*",), times.between, times.days, times.zone),),
        budget=None if budget is None else BudgetRule(budget.size_bytes, budget.day, ZoneInfo(budget.zone)),
        pin_s=region.pin_s,
    )


def _tls(config: HubConfig) -> TlsFiles | None:
    """Return the files of TLS. Handshakes ask for certificates and require none: readers and probes have none."""
    from weft.network.tls import TlsFiles

    tls = config.tls
    if tls is None:
        return None
    return TlsFiles(
        certificate=tls.certificate,
        key=tls.key,
        client_ca=tls.client_ca,
        crl_file=tls.crl_file,
        client_certificate_required=False,
    )


def _certificate_readers(config: HubConfig) -> dict[str, CertificateRights]:
    from weft.cloud_hub.settings import CertificateRights

    readers = config.tls.readers if config.tls is not None else None
    return {name: CertificateRights(each.rights, each.tenant) for name, each in (readers or {}).items()}


def _jwt(config: HubConfig) -> JwtSettings | None:
    from weft.cloud_hub.settings import JwtSettings

    return None if config.jwt is None else JwtSettings(**msgspec.structs.asdict(config.jwt))


def _admission(config: HubConfig) -> AdmissionLimits:
    from weft.network.admission import AdmissionLimits

    tls = config.tls
    if tls is None:
        return AdmissionLimits()
    return AdmissionLimits(
        connection_rate_per_address=tls.connection_rate,
        connection_burst_per_address=tls.connection_burst,
        half_open_max=tls.half_open,
        connect_timeout_s=tls.connect_timeout_s,
        section="tls",
    )


def longest_round_s(config: HubConfig) -> float:
    """Return a time in which every stream's new records become rows of its table, if it is well."""
    if config.tables is None:
        return ROUND_S
    return (_table_interval_s(config) or 0.0) + (config.tables.write_after_s or 0.0) + ROUND_S


def _table_interval_s(config: HubConfig) -> float | None:
    if config.tables is None:
        return None
    if config.tables.interval_s is not None:
        return config.tables.interval_s
    return TABLE_INTERVAL_FOLDER_S if _in_folder(config) else TABLE_INTERVAL_BUCKET_S


def _commit_interval_s(config: HubConfig) -> float:
    if config.commit_interval_s is not None:
        return config.commit_interval_s
    return COMMIT_INTERVAL_FOLDER_S if _in_folder(config) else COMMIT_INTERVAL_BUCKET_S


def _is_paced(config: HubConfig) -> bool:
    """Return whether commits follow their cost: no interval is set, and an object costs no money."""
    return config.commit_interval_s is None and _in_folder(config)


def _in_folder(config: HubConfig) -> bool:
    return "://" not in config.store.removeprefix("file://")

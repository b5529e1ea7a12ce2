"""Alerts on hubs."""

from __future__ import annotations

from docs.tools.monitoring.alert import CRITICAL, HUB_JOB, WARNING, Alert

_NODE = "job, instance"
_DAY_S = 86400
_P99 = "histogram_quantile(0.99, sum by (job, instance, le) (rate({}_bucket[10m])))"
_DISK_FULL_WITHIN = (
    "(min by (job) (weft_hub_store_free_bytes) / (max by (job) (-deriv(weft_hub_store_free_bytes[1d])) > 0)"
    f" < {{}} * {_DAY_S}) and on (job) max by (job) (max_over_time(weft_hub_store_free_bytes[18h] offset 6h))"
)
"""Days until the disk is full, at the rate of the last day. A slope of fewer than six hours says nothing: a restore, a
first backup or a young hub fills a disk at a rate that ends by itself.
"""
_FREE_MIN = 1 << 30
_STREAM = ("tenant", "stream")

COMMITTING = (
    Alert(
        "WeftHubDown", f'up{{job="{HUB_JOB}"}} == 0', "5m", CRITICAL, "the hub node does not answer",
        "Look at its machine and at `systemctl status weft-hub`. Edges keep their records and use other nodes.",
        "scale-a-hub-out.md",
    ),
    Alert(
        "WeftHubStoreTrouble", "weft_hub_store_trouble == 1", "1m", CRITICAL, "the store does not answer",
        "Look at the bucket or folder, its credentials and its network; the hub's log has the error. Edges wait.",
        "hub-on-s3.md", ("shard",),
    ),
    Alert(
        "WeftHubCommitsSlow", f"{_P99.format('weft_hub_commit_latency_seconds')} > 5", "10m", WARNING,
        "one commit in a hundred takes {{ $value | humanizeDuration }}",
        "Edges wait as long for acknowledgements. Look at the store's times, then at the processor of the hub.",
        "scale-a-hub-out.md",
    ),
    Alert(
        "WeftHubStoreSlow", f"{_P99.format('weft_hub_store_put_latency_seconds')} > 3", "10m", WARNING,
        "one write to the store in a hundred takes {{ $value | humanizeDuration }}",
        "Look at the store and the network to it.", "hub-on-s3.md",
    ),
    Alert(
        "WeftHubClockWrong", "abs(weft_hub_clock_off_seconds) >= 5", "1m", CRITICAL,
        "the clock is {{ $value | humanizeDuration }} off the store's",
        "The node takes no new work. Set its clock, and run a time service: `timedatectl set-ntp true`.",
        "watch-a-fleet.md",
    ),
    Alert(
        "WeftHubEdgesClocksDiffer", "weft_hub_links_clock_differs > 0", "30m", WARNING,
        "{{ $value }} connected edges have clocks a minute or more from the hub's",
        "`weft hub status` names them. If it is nearly all of them, look at the hub's clock.", "watch-a-fleet.md",
    ),
    Alert(
        "WeftHubEdgesGone",
        "sum by (job) (weft_hub_links) < 0.8 * max_over_time(sum by (job) (weft_hub_links)[1h:1m])", "10m", CRITICAL,
        "a fifth of the edges that were linked in the last hour is gone, {{ $value }} are left",
        "Look at the network before the hub, and at its certificate and tokens; `weft hub status` names the silent.",
        "watch-a-fleet.md", by_instance=False,
    ),
    Alert(
        "WeftHubEdgesSilent", 'sum by (job) (weft_hub_edges_silent{over="4m"}) > 0', "1m", WARNING,
        "{{ $value }} edges were not heard of for four minutes or more",
        "`weft hub status` at any host names them, and since when. Look at their power and their network.",
        "watch-a-fleet.md", by_instance=False,
    ),
    Alert(
        "WeftHubEdgesSilentForADay", 'sum by (job) (weft_hub_edges_silent{over="1d"}) > 0', "1m", CRITICAL,
        "{{ $value }} edges were not heard of for a day or more",
        "`weft hub status` at any host names them. Their disks fill up; what is gone for good, `weft hub retire` ends.",
        "watch-a-fleet.md", by_instance=False,
    ),
    Alert(
        "WeftHubEdgesDiskLastsHours",
        'sum by (job) (weft_hub_edges_outage_left_short{under="4h", linked="0"}) > 0', "5m", CRITICAL,
        "{{ $value }} edges without a link have room for less than four hours of records",
        "The console's *Fleet*, by *Outage left*, names them. Mend their links, or give their logs a larger budget.",
        "watch-a-fleet.md", by_instance=False,
    ),
    Alert(
        "WeftHubEdgesDiskLastsADay",
        'sum by (job) (weft_hub_edges_outage_left_short{under="1d", linked="0"}) > 0', "1h", WARNING,
        "{{ $value }} edges without a link have room for less than a day of records",
        "The console's *Fleet*, by *Outage left*, names them. Mend their links before their logs are full.",
        "watch-a-fleet.md", by_instance=False,
    ),
    Alert(
        "WeftHubBackupOld", f"min by (job) (weft_hub_backup_age_seconds < +Inf) > 2 * {_DAY_S}", "1h", WARNING,
        "the last complete backup has nothing of the last {{ $value | humanizeDuration }}",
        "Run `weft hub backup`, and look at the timer that should. `weft hub status` names the place of the last one.",
        "backup-and-restore.md", by_instance=False,
    ),
    Alert(
        "WeftHubRegionBehind",
        "weft_hub_region_lag_seconds > 0.5 * weft_hub_region_kept_seconds", "15m",
        WARNING, "the region has been lacking records for {{ $value | humanizeDuration }}, half of what the log keeps",
        "`weft hub region status` says why. Mend the link, or raise `pin` before the log deletes them.",
        "two-regions.md", ("region", "shard"),
    ),
    Alert(
        "WeftHubRegionBudget",
        "max by (job, region) (weft_hub_region_budget_used_bytes / (weft_hub_region_budget_bytes > 0)) > 0.9", "15m",
        WARNING, "{{ $value | humanizePercentage }} of the month's budget of the links to a region is used",
        "At its end records wait for the next month, and the log keeps them for `pin` at most. Raise the budget, or "
        "relay fewer streams.", "two-regions.md", ("region",), by_instance=False,
    ),
    Alert(
        "WeftHubRegionBudgetUsedUp", "max by (job, region) (weft_hub_region_budget_used_up) > 0", "5m", CRITICAL,
        "records for a region wait for the next month: the budget is used up",
        "`weft hub region status` says until when, and for how long the log keeps them. Raise the budget.",
        "two-regions.md", ("region",), by_instance=False,
    ),
    Alert(
        "WeftHubRegionLost", "weft_hub_region_lost_chunks > 0", "1m", CRITICAL,
        "the log deleted chunks before the region had their records",
        "`weft hub region status` names them, and `weft hub region history` brings their records from the tables.",
        "two-regions.md", ("region", "shard"),
    ),
    Alert(
        "WeftHubDiskFillsUp", _DISK_FULL_WITHIN.format(7), "1h", WARNING,
        "the disk of the store is full in {{ $value | humanizeDuration }} at the rate of the last day",
        "Set or lower `retain_log`, remove old rows, or move the store to a larger disk. `weft hub status` says until "
        "when it lasts.", "watch-a-fleet.md", by_instance=False,
    ),
    Alert(
        "WeftHubDiskNearlyFull",
        f"{_DISK_FULL_WITHIN.format(1)} or min by (job) (weft_hub_store_free_bytes) < {_FREE_MIN}", "10m", CRITICAL,
        "the disk of the store is full within a day, or has less than 1 GiB free",
        "Make room now. A full disk takes no commit: edges keep what they have, until their own disks are full.",
        "watch-a-fleet.md", by_instance=False,
    ),
    Alert(
        "WeftHubConflict", "weft_hub_conflicts > 0", "1m", CRITICAL, "a second node claims the log of an edge",
        "`weft hub status` names it. Stop the copy that should not run.", "two-copies-of-a-node.md",
    ),
    Alert(
        "WeftHubIssuerAway", "weft_hub_jwt_keys_failing_seconds > 3600", "5m", WARNING,
        "the keys of the issuer of tokens could not be read for {{ $value | humanizeDuration }}",
        "`weft hub status` says why, and until when the known keys count (`jwt.keep`). Then its tokens open nothing.",
        "declare-tokens-and-tenants.md",
    ),
    Alert(
        "WeftHubDeclarationsOld", "weft_hub_cluster_log_age_seconds > 60", "5m", WARNING,
        "the process last saw the cluster log {{ $value | humanizeDuration }} ago",
        "Revoked tokens may still work there. Look at the store, then start the process again.",
        "declare-tokens-and-tenants.md",
    ),
    Alert(
        "WeftHubDeclarationsUnusable", "weft_hub_cluster_log_unusable > 0", "5m", CRITICAL,
        "{{ $value }} entries of the cluster log are damaged, missing, or of a later release",
        "The hub's log names them. Install the later release, or restore them from a backup.",
        "backup-and-restore.md",
    ),
    Alert(
        "WeftHubCertificateEnds",
        f"(weft_hub_certificate_expires_timestamp_seconds > 0) - time() < 14 * {_DAY_S}", "1h", WARNING,
        "the certificate ends in {{ $value | humanizeDuration }}",
        "Put a new one at the same path: the hub takes it by itself. Without it no edge connects.",
        "tls-at-the-hub.md",
    ),
    Alert(
        "WeftHubReloadFailed", "increase(weft_hub_tls_reload_failures_total[15m]) > 0", "0m", WARNING,
        "changed certificates could not be used, and the former ones are in force",
        "The hub's log says why. `weft hub check` tries the files.", "tls-at-the-hub.md",
    ),
    Alert(
        "WeftHubShareReached", "sum by (job, instance, bound, owner) (increase(weft_hub_refusals_total[15m])) > 0",
        "15m", WARNING, "the owner is refused more than its share",
        "Find out why it asks for that much, or raise the setting.", "keep-a-tenant-apart.md", ("bound", "owner"),
    ),
    Alert(
        "WeftHubFilesNearlyOut",
        f"process_open_fds / process_max_fds > 0.8 and on ({_NODE}) weft_hub_build_info", "10m", WARNING,
        "{{ $value | humanizePercentage }} of the files that the process may open are open",
        "Raise `LimitNOFILE` of the unit, or add a hub node.", "scale-a-hub-out.md",
    ),
)  # fmt: skip

READING = (
    Alert(
        "WeftHubStreamIncomplete",
        "max by (job, tenant, stream) (time() - (weft_hub_stream_complete_up_to_timestamp_seconds > 0)) > 3600",
        "15m", WARNING, "the stream is complete only up to {{ $value | humanizeDuration }} ago",
        "`weft streams` says which edge holds it back.", "prove-nothing-is-missing.md", _STREAM, by_instance=False,
    ),
    Alert(
        "WeftHubStreamUnknown", "weft_hub_stream_complete_up_to_timestamp_seconds == 0", "1h", WARNING,
        "it is unknown up to when the stream is complete",
        "`weft streams` says why: an expected edge that never came, or the hub's clock.",
        "prove-nothing-is-missing.md", _STREAM,
    ),
    Alert(
        "WeftHubTableBehind", "weft_hub_stream_table_lag_seconds > 3600", "10m", WARNING,
        "records wait for {{ $value | humanizeDuration }} to become rows of the table",
        "Look at `weft hub status` and the store. A longer `tables.write_after` needs a longer bound.",
        "open-the-table.md", _STREAM,
    ),
    Alert(
        "WeftHubTableStopped", "weft_hub_stopped_tables > 0", "5m", CRITICAL,
        "{{ $value }} tables wait behind records that cannot become rows",
        "`weft hub status` names table and record; `weft hub skip` skips it, with a reason.", "open-the-table.md",
    ),
    Alert(
        "WeftHubPipelineTrouble", "max by (job, tenant, pipeline) (weft_hub_pipeline_trouble) == 1", "5m", WARNING,
        "the query of Spark has failed, or says nothing any more",
        "The console's *Pipelines* has its last error. Start it again, or `DELETE` its report if it is gone for good.",
        "run-a-pipeline.md", ("tenant", "pipeline"), by_instance=False,
    ),
    Alert(
        "WeftHubQualityRule", "weft_hub_quality_rule_alarm == 1", "1m", WARNING,
        "more rows fail than are tolerated, or the table is not fresh",
        "`quality` of `GET /v1/status` has the numbers.", "check-data-quality.md", (*_STREAM, "rule"),
    ),
    Alert(
        "WeftHubFieldVanished",
        "weft_hub_quality_alarms"
        f" > (sum by ({_NODE}) (weft_hub_quality_rule_alarm) or weft_hub_quality_alarms * 0)",
        "1m", WARNING, "a field that rows used to have has vanished",
        "`quality` of `GET /v1/status` names it: mend the device, or declare a schema without it.",
        "check-data-quality.md",
    ),
    Alert(
        "WeftHubQualityUnknown", "weft_hub_quality_rule_unknown == 1", "1h", WARNING,
        "the state of the rule is unknown", "`why` in `GET /v1/status` says the reason.", "check-data-quality.md",
        (*_STREAM, "rule"),
    ),
)  # fmt: skip

HUB_ALERTS = (*COMMITTING, *READING)

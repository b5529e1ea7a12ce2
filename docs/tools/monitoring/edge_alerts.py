"""Alerts on edge nodes."""

from __future__ import annotations

from docs.tools.monitoring.alert import CRITICAL, EDGE_JOB, WARNING, Alert

NODE = "job, instance"
LINK = f"{NODE}, link"
_DAY_S = 86400
_P99 = "histogram_quantile(0.99, sum by (job, instance, le) (rate({}_bucket[10m])))"
_LOG_FULL_WITHIN = (
    "((weft_edge_log_budget_bytes - weft_edge_log_unsafe_bytes)"
    " / (deriv(weft_edge_log_unsafe_bytes[30m]) > 0) < {} * 3600)"
    f" and on ({NODE}) max by ({NODE}) (weft_edge_link_pending_seconds) > 600"
)
"""Hours until the log of a node is full, at the rate at which what no hub has grows; only where records wait.

``deriv`` takes the link's own rate into account. Without the second condition a node that was just started, and fills
its retention, would look as if it were about to overflow. A comparison binds tighter than ``and``: without its own
parentheses the first bound would be one of the seconds for which records wait.
"""

STORING = (
    Alert(
        "WeftEdgeDown",
        f'up{{job="{EDGE_JOB}"}} == 0',
        "5m",
        CRITICAL,
        "the edge does not answer",
        "Look at its power and network, then at `systemctl status weft-edge`; its devices may not be served.",
        "run-under-systemd.md",
    ),
    Alert(
        "WeftEdgeLogFailed",
        "weft_edge_log_failed == 1",
        "0m",
        CRITICAL,
        "a write or sync of the log failed",
        "The edge accepts nothing. Look at the disk in `dmesg`, replace it if it is worn, and start the edge again.",
        "full-disk-or-link-down.md",
    ),
    Alert(
        "WeftEdgeLogFull",
        "weft_edge_log_full == 1",
        "1m",
        CRITICAL,
        "the log is full",
        "Devices get no acknowledgements. Bring the link up, or raise `disk.budget`.",
        "full-disk-or-link-down.md",
    ),
    Alert(
        "WeftEdgeLogLow",
        "weft_edge_log_low == 1",
        "5m",
        WARNING,
        "less than `disk.low_water` is free for records",
        "Find out why the link does not empty the log (`weft edge status`), or raise `disk.budget`.",
        "full-disk-or-link-down.md",
    ),
    Alert(
        "WeftEdgeOutageHoursFew",
        _LOG_FULL_WITHIN.format(24),
        "15m",
        WARNING,
        "the log is full in {{ $value | humanizeDuration }} if records continue waiting like this",
        "Bring the link up before then, or raise `disk.budget`.",
        "full-disk-or-link-down.md",
    ),
    Alert(
        "WeftEdgeOutageHoursNearlyOver",
        _LOG_FULL_WITHIN.format(4),
        "15m",
        CRITICAL,
        "the log is full in {{ $value | humanizeDuration }} if records continue waiting like this",
        "Bring the link up now, or raise `disk.budget`. A full log acknowledges nothing.",
        "full-disk-or-link-down.md",
    ),
    Alert(
        "WeftEdgeGap",
        'weft_edge_stream_lost_records{reason!~"operator|renamed"} > 0',
        "0m",
        WARNING,
        "{{ $value }} records are missing",
        "Readers see the gap with this reason; after the next connection `weft audit` names the records.",
        "prove-nothing-is-missing.md",
        ("stream", "reason"),
    ),
    Alert(
        "WeftEdgeAcksSlow",
        f"{_P99.format('weft_edge_ack_latency_seconds')} > 1",
        "15m",
        WARNING,
        "one acknowledgement in a hundred takes {{ $value | humanizeDuration }}",
        "Devices wait for the disk. Look for other programs that write to it, and for a worn card.",
    ),
    Alert(
        "WeftEdgeDiskSlow",
        f"{_P99.format('weft_edge_log_sync_latency_seconds')} > 0.5",
        "15m",
        WARNING,
        "one sync of the disk in a hundred takes {{ $value | humanizeDuration }}",
        "A worn card gets slow before it fails. Measure it with `weft edge doctor`; look for other programs.",
        "find-out-what-is-wrong.md",
    ),
    Alert(
        "WeftEdgeCardWearsOut",
        f"0 < weft_edge_log_card_lifetime_seconds < 365 * {_DAY_S}",
        "6h",
        WARNING,
        "at the rate since the start a new card lasts {{ $value | humanizeDuration }}",
        "Raise `commit_interval`, thin out what is stored, or use a card with more endurance.",
    ),
    Alert(
        "WeftEdgeQueuesNearlyFull",
        "weft_edge_queue_bytes / (weft_edge_queue_bytes_max > 0) > 0.9",
        "10m",
        WARNING,
        "queues use {{ $value | humanizePercentage }} of `queues.size`",
        "Look for a consumer that is gone (`weft edge status`), or delete or bound the queue.",
        "replace-rabbitmq-at-the-edge.md",
    ),
)

SENDING = (
    Alert(
        "WeftEdgeLinkDown",
        "weft_edge_link_connected == 0 unless weft_edge_link_paused == 1",
        "15m",
        WARNING,
        "the link is down",
        "Look at the network and the hub; `weft edge doctor` tests the connection to it. The edge keeps what it takes.",
        "find-out-what-is-wrong.md",
        ("link",),
    ),
    Alert(
        "WeftEdgeBehind",
        f"weft_edge_link_pending_seconds > 3600 and on ({LINK}) weft_edge_link_connected == 1"
        f" unless on ({LINK}) weft_edge_link_held == 1",
        "15m",
        WARNING,
        "the link is up, and its oldest record waits for {{ $value | humanizeDuration }}",
        "Its rate is too low: look at `weft link status` and at limits of the link's policy.",
        "links-over-bad-networks.md",
        ("link",),
    ),
    Alert(
        "WeftEdgeLinkPaused",
        "weft_edge_link_paused == 1",
        "1d",
        WARNING,
        "an operator has paused the link",
        "If that is over, `weft link resume`.",
        "links-over-bad-networks.md",
        ("link",),
    ),
    Alert(
        "WeftEdgeLinkBudget",
        "weft_edge_link_budget_used_bytes / (weft_edge_link_budget_bytes > 0) > 0.9",
        "15m",
        WARNING,
        "{{ $value | humanizePercentage }} of the month's budget is used",
        "At the end of the budget data waits. Raise it, or thin out what is sent.",
        "links-over-bad-networks.md",
        ("link",),
    ),
    Alert(
        "WeftEdgeNothingBecomesDurable",
        "weft_edge_link_canary_overdue == 1",
        "2m",
        CRITICAL,
        "the hub answers, and what is sent does not become durable",
        "Look at the hub's store: `weft hub status`, `weft_hub_store_trouble`.",
        "full-disk-or-link-down.md",
        ("link",),
    ),
    Alert(
        "WeftEdgeHubLostRecords",
        "weft_edge_link_alarm == 1",
        "0m",
        CRITICAL,
        "the hub lacks records that it had acknowledged",
        "Its store was restored, or is damaged. `weft edge status` names the records; `weft link acknowledge` ends it.",
        "backup-and-restore.md",
        ("link",),
    ),
    Alert(
        "WeftEdgeConflict",
        "weft_edge_conflict == 1",
        "1m",
        CRITICAL,
        "another copy of the node's log has taken over",
        "Devices get no acknowledgements. Stop the copy that should not run.",
        "two-copies-of-a-node.md",
    ),
    Alert(
        "WeftEdgeCertificateEnds",
        "(weft_edge_link_certificate_expires_timestamp_seconds"
        " or weft_edge_listener_certificate_expires_timestamp_seconds)"
        f" - time() < 14 * {_DAY_S}",
        "1h",
        WARNING,
        "a certificate ({{ $labels.listener }}{{ $labels.link }}) ends in {{ $value | humanizeDuration }}",
        "Put a new one at the same path and reload the edge.",
        "tls-at-the-hub.md",
    ),
)

WORKING = (
    Alert(
        "WeftEdgeClockUnsynchronised",
        "weft_edge_clock_synchronised == 0",
        "1h",
        WARNING,
        "no time source keeps the clock right",
        "Run a time service: `timedatectl set-ntp true`. Until then the hub estimates the times of records.",
    ),
    Alert(
        "WeftEdgeFunctionInTrouble",
        "weft_edge_function_in_trouble == 1",
        "5m",
        CRITICAL,
        "its functions cannot continue",
        "`weft edge status` shows why. The stream waits, nothing is lost.",
        "write-a-function.md",
        ("stream",),
    ),
    Alert(
        "WeftEdgeFunctionVersionRefused",
        "weft_edge_function_version_refused == 1",
        "5m",
        WARNING,
        "its functions run in a former version, as the newer one fails",
        "`weft edge status` shows why. Mend the file or settings and reload.",
        "change-a-running-node.md",
        ("stream",),
    ),
    Alert(
        "WeftEdgeFunctionRejects",
        "rate(weft_edge_function_rows_rejected_total[15m]) / (rate(weft_edge_function_rows_in_total[15m]) > 0) > 0.05",
        "15m",
        WARNING,
        "its functions reject {{ $value | humanizePercentage }} of the rows",
        "The stream of errors has them with the reason: `weft edge tail`.",
        "write-a-function.md",
        ("stream",),
    ),
    Alert(
        "WeftEdgeFunctionBehind",
        "weft_edge_function_lag_records > 10000",
        "30m",
        WARNING,
        "its functions have {{ $value | humanize }} records to read",
        "Look at the processor of the edge; compute less there, or spread streams over more edges.",
        "write-a-function.md",
        ("stream",),
    ),
    Alert(
        "WeftEdgeMisfits",
        "sum by (job, instance, stream) (rate(weft_edge_schema_misfits_total[15m]))"
        " / (sum by (job, instance, stream) (rate(weft_edge_schema_checked_total[15m])) > 0) > 0.01",
        "15m",
        WARNING,
        "{{ $value | humanizePercentage }} of the messages do not fit the schema",
        "`weft edge tail` of `NAME-errors` shows which field; mend the device or the schema.",
        "check-payloads-at-the-edge.md",
        ("stream",),
    ),
    Alert(
        "WeftEdgeSourceDown",
        "weft_edge_source_connected == 0",
        "15m",
        WARNING,
        "the source is not connected",
        "Look at its broker; `weft edge status` has the last error.",
        "behind-an-existing-mosquitto.md",
        ("source",),
    ),
    Alert(
        "WeftEdgeReloadFailed",
        "increase(weft_edge_reload_failures_total[15m]) > 0",
        "0m",
        WARNING,
        "a reload failed, and the former settings are in force",
        "The log names the file and line. `weft edge check` tries it.",
        "change-a-running-node.md",
    ),
    Alert(
        "WeftEdgeRefusesClients",
        "increase(weft_edge_connections_refused_total[15m]) > 0",
        "15m",
        WARNING,
        "clients are refused, as `limits.connections`, or one user's share of it, is reached",
        "Find the user that has many connections, or raise `limits.connections` or `limits.user_share`.",
    ),
    Alert(
        "WeftEdgeRefusesPasswords",
        "rate(weft_edge_authentications_refused_total[15m]) > 0.2",
        "15m",
        WARNING,
        "{{ $value | humanize }} clients a second fail authentication",
        "A device has an old password, or an intruder tries some: the edge's log has addresses.",
    ),
    Alert(
        "WeftEdgeFilesNearlyOut",
        f"process_open_fds / process_max_fds > 0.8 and on ({NODE}) weft_edge_build_info",
        "10m",
        WARNING,
        "{{ $value | humanizePercentage }} of the files that the process may open are open",
        "Raise `LimitNOFILE` of the unit, or lower `limits.connections`.",
        "run-under-systemd.md",
    ),
)

EDGE_ALERTS = (*STORING, *SENDING, *WORKING)

"""The dashboard of links: those of edges to hubs, as both ends see them, and those between regions."""

from __future__ import annotations

from docs.tools.monitoring.panel import Row, Variable, dashboard, figure, plot, table

_EDGES = '{job=~"$job", link=~"$link"}'
_HUBS = '{job=~"$hub_job"}'
_RATE = "[$__rate_interval]"
_WORST = 20
"""Rows of a table about a fleet of any size."""

VARIABLES = (
    Variable("job", "label_values(weft_edge_build_info, job)", has_all=True),
    Variable("link", 'label_values(weft_edge_link_connected{job=~"$job"}, link)', has_all=True),
    Variable("hub_job", "label_values(weft_hub_build_info, job)", has_all=True),
)


def _sum(name: str, labels: str = _EDGES, *by: str) -> str:
    over = f" by ({', '.join(by)})" if by else ""
    return f"sum{over} (rate({name}{labels}{_RATE}))"


ROWS = (
    Row(
        "Links of edges",
        (
            figure("Links", f"count(weft_edge_link_connected{_EDGES})"),
            figure("Down", f"count(weft_edge_link_connected{_EDGES} == 0) or vector(0)", red_from=1),
            figure("Paused", f"count(weft_edge_link_paused{_EDGES} == 1) or vector(0)"),
            figure("Held by their policy", f"count(weft_edge_link_held{_EDGES} == 1) or vector(0)"),
            figure(
                "Nothing becomes durable",
                f"count(weft_edge_link_canary_overdue{_EDGES} == 1) or vector(0)",
                red_from=1,
                about="Links whose hub answers while its store accepts nothing.",
            ),
            figure("Hub lost records", f"count(weft_edge_link_alarm{_EDGES} == 1) or vector(0)", red_from=1),
        ),
        height=4,
    ),
    Row(
        "What goes over them, and what waits",
        (
            plot("Sent", (_sum("weft_edge_link_sent_bytes_total", _EDGES, "link"), "{{link}}"), unit="Bps"),
            plot("Records that wait", (f"sum by (link) (weft_edge_link_pending_records{_EDGES})", "{{link}}")),
            plot(
                "Oldest record that waits",
                (f"max by (link) (weft_edge_link_pending_seconds{_EDGES})", "{{link}}"),
                unit="s",
                about="Of the edge that is furthest behind.",
            ),
            plot(
                "Slowest round trip",
                (f"max by (link) (weft_edge_link_ping_seconds{_EDGES})", "{{link}} PING"),
                (f"max by (link) (weft_edge_link_delivery_seconds{_EDGES})", "{{link}} until acknowledged"),
                unit="s",
            ),
        ),
    ),
    Row(
        "The links to look at",
        (
            table(
                "Furthest behind",
                f"topk({_WORST}, weft_edge_link_pending_seconds{_EDGES} > 60)",
                "s",
                "Age of the oldest record that the hub has not acknowledged.",
            ),
            table(
                "Longest until drained",
                f"topk({_WORST}, weft_edge_link_drain_seconds{_EDGES} > 60)",
                "s",
                "At the rate of the last minute. Links whose backlog does not shrink are not here.",
            ),
            table("Attempts that failed in a row", f"topk({_WORST}, weft_edge_link_attempts_failed{_EDGES} > 0)"),
            table(
                "Share of the monthly budget",
                f"topk({_WORST}, weft_edge_link_budget_used_bytes{_EDGES} / (weft_edge_link_budget_bytes{_EDGES} > 0))",
                "percentunit",
            ),
        ),
        height=9,
    ),
    Row(
        "As the hub sees them",
        (
            plot("Edges linked", (f"sum by (instance) (weft_hub_links{_HUBS})", "{{instance}}")),
            plot("Sessions refused", (_sum("weft_hub_sessions_refused_total", _HUBS), "lanes"), unit="cps"),
            plot(
                "Disks that last for few hours",
                (
                    f"sum by (under, linked) (weft_hub_edges_outage_left_short{_HUBS})",
                    "under {{under}}, linked {{linked}}",
                ),
                about="Edges, by how long they can continue without a hub.",
            ),
            plot("Disks of which nothing is known", (f"sum(weft_hub_edges_outage_left_unknown{_HUBS})", "edges")),
        ),
    ),
    Row(
        "Between regions",
        (
            plot(
                "Links that are up",
                (f"sum by (region) (weft_hub_region_connected{_HUBS})", "{{region}}"),
                about="One for each shard.",
            ),
            plot(
                "Behind by",
                (f"max by (region) (weft_hub_region_lag_seconds{_HUBS})", "{{region}}"),
                unit="s",
                about="Age of the oldest chunk with records that the region does not have.",
            ),
            plot(
                "Deleted before the region had them",
                (f"sum by (region) (weft_hub_region_lost_chunks{_HUBS})", "{{region}}"),
                about="Runs of chunks.",
            ),
        ),
    ),
)


def links() -> str:
    """Return the dashboard of links."""
    about = "Weft links: those of edges to hubs, as both ends see them, and those between regions."
    return dashboard("weft-links", "Weft: links", about, VARIABLES, ROWS)

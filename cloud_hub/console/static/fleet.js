// Edges: where each is, how far behind, and what holds it back.

import * as api from "./api.js";
import { sees } from "./acting.js";
import { edgeLink } from "./edge.js";
import { ago, badge, count, duration, el, millis, notice, page, prose, size, utc, when } from "./dom.js";
import { FleetMap } from "./fleetmap.js";
import { Table } from "./table.js";

/** An idle edge is heard of every two minutes, and counts as silent after this time: the rule of `severity` in the API. */
const LATE_MS = 240_000;
const CLOCK = new Set(["clock_behind", "hub_clock_wrong"]);
const ROUND_MS = 30_000;
const FAR_S = 365 * 86400;
const OUTAGE_WARN_S = 24 * 3600;
const OUTAGE_BAD_S = 4 * 3600;
const USED_WARN = 0.75;
const USED_BAD = 0.9;
const WRONGS_MAX = 5;
/** Longest time for which the list waits for what is above it, so that it seldom moves down. */
const WRONGS_MS = 300;

const state = (edge) => {
  if (edge.retired) return "retired";
  if (edge.alarms.length) return "alarm";
  return edge.connected_since ? "linked" : "not linked";
};
const lag = (edge) => (edge.complete_up_to ? Math.max(0, edge.read - millis(edge.complete_up_to)) : null);
const spaced = (reason) => reason.replaceAll("_", " ");
const clock = (edge) => edge.alarms.find((each) => CLOCK.has(each.reason));

/** What asks something of a person is first: alarms, then disks, then edges without a link, then late ones. */
function rank(edge) {
  if (edge.retired) return 9;
  if (edge.alarms.length) return 0;
  const left = outageS(edge, edge.read);
  if ((left !== null && left < OUTAGE_WARN_S) || taken(edge) >= USED_WARN) return 1;
  if (!edge.connected_since) return 2;
  if (lag(edge) > LATE_MS) return 3;
  return edge.missing_records || edge.lost_records ? 4 : 5;
}
/** In each rank the edge that is behind for the longest time is first. */
const urgency = (edge) => rank(edge) * 1e15 - (rank(edge) < 5 ? Math.min(lag(edge) ?? 9e14, 9e14) : 0);

/** The colour of an edge's cell in the map. */
const kindOf = (edge) => (edge.alarms.length ? "alarm" : lag(edge) > LATE_MS ? "late" : edge.connected_since ? "linked" : "away");

export function stateBadge(edge) {
  const text = state(edge);
  const kind = { alarm: "bad", linked: "good", retired: "quiet" }[text] || "quiet";
  const title = edge.connected_since ? `linked since ${utc(millis(edge.connected_since))} UTC${edge.connected_at ? `, to ${edge.connected_at}` : ""}` : "not linked";
  return badge(kind, text === "alarm" ? spaced(edge.alarms[0].reason) : text, title);
}

/** Part of an edge's budget that is taken by records which no hub has; null if it is not known. */
const taken = ({ disk }) => (disk && disk.budget_bytes ? Math.max(0, 1 - disk.free_bytes / disk.budget_bytes) : null);

/** Seconds for which an edge can continue without a hub, at best infinite; null if they are not known. */
function outageS({ disk, connected_since: since }, now) {
  if (!disk || (disk.outage_seconds_left === null && disk.bytes_per_second === null)) return null;
  if (disk.outage_seconds_left === null) return Infinity;
  // Without a link, the outage continues since the edge said so.
  const passed = since ? 0 : Math.max(0, now - millis(disk.reported)) / 1000;
  return Math.max(0, disk.outage_seconds_left - passed);
}

const saidAt = (edge, now) => (edge.connected_since ? null : `as it said ${ago(millis(edge.disk.reported), now)}`);
const unknown = (title = "The edge has not said it to this hub.") => el("span", { class: "unknown", title }, "unknown");

export function outageLeft(edge, now) {
  const left = outageS(edge, now);
  if (left === null) return unknown();
  const text = left === Infinity ? "no end" : left > FAR_S ? "over a year" : left < 1 ? "none" : duration(left * 1000);
  const kind = left < OUTAGE_BAD_S ? "bad" : left < OUTAGE_WARN_S ? "warn" : null;
  return kind && !edge.retired ? badge(kind, text, saidAt(edge, now)) : el("span", { title: saidAt(edge, now) }, text);
}

export function disk(edge, now) {
  const used = taken(edge);
  if (used === null) return unknown();
  const text = `${size(edge.disk.free_bytes)} of ${size(edge.disk.budget_bytes)} free`;
  const kind = used >= USED_BAD ? "bad" : used >= USED_WARN ? "warn" : null;
  return kind && !edge.retired ? badge(kind, text, saidAt(edge, now)) : el("span", { title: saidAt(edge, now) }, text);
}

function alarms(edge) {
  if (!edge.alarms.length) return "";
  const [first, ...others] = edge.alarms;
  return el("details", { class: "line" },
    el("summary", { title: `${first.why}. ${first.what_to_do}`, "data-named": `${edge.tenant}/${edge.edge}` }, prose(first.why), others.length ? ` (and ${others.length} more)` : ""),
    el("ul", { class: "plain" }, edge.alarms.map((each) => el("li", {}, el("strong", {}, spaced(each.reason)), `, stream ${each.stream}: `,
      prose(each.why), ". ", el("span", { class: "advice" }, prose(each.what_to_do))))));
}

const COLUMNS = [
  { key: "edge", title: "Edge", value: (e) => `${e.tenant}/${e.edge}`, cell: (e) => edgeLink(e) },
  { key: "state", title: "State", kind: "short", value: urgency, cell: stateBadge },
  { key: "alarms", title: "Alarms", rare: true, value: (e) => (e.alarms.length ? -e.alarms.length : null), cell: alarms },
  { key: "lag", title: "Lag", kind: "number", value: lag,
    cell: (e) => {
      const behind = lag(e);
      if (behind === null) return el("span", { class: "unknown" }, "unknown");
      return behind > LATE_MS && !e.retired ? badge("warn", duration(behind)) : duration(behind);
    } },
  { key: "seen", title: "Last seen", kind: "short", value: (e) => millis(e.last_seen), cell: (e) => when(e.last_seen, e.read) },
  { key: "missing", title: "Missing", kind: "number", rare: true, value: (e) => e.missing_records || null,
    cell: (e) => (e.missing_records ? count(e.missing_records) : "") },
  { key: "lost", title: "Lost", kind: "number", rare: true, value: (e) => -(e.lost_records ?? 0) || null,
    cell: (e) => (e.lost_records === undefined ? unknown("An earlier release holds its shard.") : e.lost_records ? badge("bad", count(e.lost_records), "The edge gave them up: its page has the gaps, with their reasons.") : "") },
  { key: "outage", title: "Outage left", kind: "number", rare: true, value: (e) => outageS(e, e.read), cell: (e) => outageLeft(e, e.read) },
  { key: "disk", title: "Disk", kind: "short", rare: true, value: (e) => (taken(e) === null ? null : -taken(e)), cell: (e) => disk(e, e.read) },
  { key: "software", title: "Release", kind: "short", rare: "same", value: (e) => e.software,
    cell: (e) => e.software || el("span", { class: "unknown" }, "unknown") },
  { key: "clock", title: "Clock", kind: "short", rare: true, value: (e) => (clock(e) ? 0 : e.clock_off_seconds ?? null),
    cell: (e) => {
      if (clock(e)) return badge("bad", "behind", clock(e).why);
      if (e.clock_off_seconds === null || e.clock_off_seconds === undefined) {
        return el("span", { class: "unknown", title: "Only linked edges with a time source say it." }, "unknown");
      }
      const off = `${e.clock_off_seconds > 0 ? "+" : ""}${e.clock_off_seconds.toFixed(1)} s`;
      return Math.abs(e.clock_off_seconds) >= 60 ? badge("warn", off) : off;
    } },
  { key: "groups", title: "Groups", rare: true, value: (e) => (e.groups || []).join(", ") || null,
    cell: (e) => (e.groups || []).join(", ") },
  { key: "tenant", title: "Tenant", rare: "same", value: (e) => e.tenant },
];

/** What `weft hub status` says of the hub as a whole, for those who may see it. */
async function wrongs(signal) {
  let answer;
  try {
    answer = await api.get("troubles", { tenant: null }, signal);
  } catch (error) {
    return signal.aborted ? [] : [notice("warn", `What is wrong at the hub is not known: ${error.message}.`, error.advice)];
  }
  const { at_quota: full = [], lost, conflicts, open_gaps: gaps, open_gaps_more: gapsMore, lost_unknown_at: unknownAt = [] } = answer;
  const told = full.map((each) => notice("warn", `Tenant ${each.tenant} has reached its quota of ${spaced(each.quota)}: ${each.quota.startsWith("bytes") ? size(each.limit) : count(each.limit)}.`,
    each.wait_seconds ? `Its ${count(each.edges)} edges wait ${duration(each.wait_seconds * 1000)}; nothing is lost. Raise it under Tenants.`
      : "What is new is refused, and tried again. Raise it under Tenants.",
    el("a", { href: `#/fleet?filter=${encodeURIComponent(each.tenant)}` }, "Its edges")));
  for (const each of lost.slice(0, WRONGS_MAX)) {
    told.push(notice("bad", `The hub lacks ${count(each.records)} records of ${each.tenant}/${each.edge}, ${each.stream}, that it had acknowledged.`,
      "Its store was restored, or lost objects; the edge sends again what it still has."));
  }
  for (const each of conflicts.slice(0, WRONGS_MAX)) told.push(notice("bad", `${each.tenant}/${each.edge}, ${each.stream}: ${each.why}.`));
  const more = Math.max(0, lost.length - WRONGS_MAX) + Math.max(0, conflicts.length - WRONGS_MAX);
  if (more) told.push(notice("bad", `${count(more)} more of these.`, "`weft hub status --trouble` has all."));
  if (gaps.length) {
    told.push(notice("warn", `${count(gaps.length + gapsMore)} lanes of retired edges end with a loss of unknown size.`,
      `The latest is of ${gaps[0].tenant}/${gaps[0].edge}, ${gaps[0].stream}.`));
  }
  if (unknownAt.length) told.push(notice("warn", `What was lost at ${unknownAt.join(", ")} is not known here yet.`));
  return told;
}

export function fleet({ main, signal, onChange, me, query }) {
  const table = new Table({ name: "Edges", columns: COLUMNS, sort: { key: "state", down: false },
    empty: "No edge. One that links to this hub is here within seconds." });
  const summary = el("dl", { class: "figures", "aria-label": "Summary" });
  const map = new FleetMap({ kindOf, signal, told: (edge) => `${edge.edge}: ${spaced(edge.alarms[0]?.why ?? state(edge))}`,
    open: (edge) => { location.hash = edgeLink(edge).hash; } });
  const troubles = el("div");
  const ofHub = el("div");
  const text = el("input", { type: "search", id: "edge-filter", placeholder: "name, group, release, alarm", value: query.get("filter") });
  const states = el("select", { id: "edge-state" },
    ["any state", "alarm", "late", "lost records", "linked", "not linked", "retired"].map((each) => el("option", {}, each)));
  const apply = () => {
    const words = text.value.toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = states.value;
    table.filter((edge) => {
      if (wanted === "late" && !(lag(edge) > LATE_MS && !edge.retired)) return false;
      if (wanted === "lost records" && !edge.lost_records) return false;
      if (!["any state", "late", "lost records"].includes(wanted) && state(edge) !== wanted) return false;
      return words.every((word) => edge.words.includes(word));
    });
  };
  if (text.value) apply();
  text.addEventListener("input", apply);
  states.addEventListener("change", apply);
  main.replaceChildren(...page("Fleet", summary, map.element, ofHub, troubles,
    el("form", { class: "filters", role: "search", "aria-label": "Edges", onsubmit: (e) => e.preventDefault() },
      el("label", { for: "edge-filter" }, "Filter"), text, el("label", { for: "edge-state" }, "State"), states),
    table.element));

  const rounds = new api.Rounds(async () => {
    const edges = [];
    let isFirst = !table.rows.length;
    try {
      const asked = sees(me, "status") ? wrongs(signal).then((told) => ofHub.replaceChildren(...told)) : null;
      const waited = isFirst && Promise.race([asked, new Promise((done) => setTimeout(done, WRONGS_MS))]);
      for await (const { answer, isLast } of api.pages("edges", { signal })) {
        const read = Date.now();
        for (const each of answer.edges) {
          each.read = read;
          each.words = [each.tenant, each.edge, each.software, ...(each.groups || []),
            ...each.alarms.map((a) => a.reason)].join(" ").toLowerCase();
          edges.push(each);
        }
        await waited;
        if (isFirst || isLast) {
          table.show(edges.slice());
          figures(edges, summary, isLast);
          map.show(edges.filter((each) => !each.retired), isLast, `${count(edges.length)} edges: ${summary.innerText.replaceAll("\n", " ")}`);
          isFirst = false;
        }
        const missing = answer.missing_shards || [];
        troubles.replaceChildren(...(missing.length ? [notice("warn", `${missing.length} shards cannot be read.`,
          "Their edges, and what is wrong with them, are not shown; see Nodes.")] : []));
      }
    } catch (error) {
      if (!signal.aborted) troubles.replaceChildren(notice("bad", error.message, error.advice));
    }
  }, { leastMs: 5000, restMs: ROUND_MS, signal });
  onChange((event) => (event.edges.length || event.edges_more) && rounds.poke());
}

function figures(edges, summary, isWhole) {
  const more = isWhole ? "" : "+";
  const kept = edges.filter((e) => !e.retired);
  const of = (kind) => kept.filter((e) => kindOf(e) === kind).length;
  const sum = (value) => kept.reduce((total, e) => total + value(e), 0);
  const lost = edges.reduce((total, e) => total + (e.lost_records || 0), 0);
  const isPart = edges.some((e) => e.lost_records === undefined);
  const told = [["Edges", edges.length, ""], ["With alarms", of("alarm"), "alarm"], ["Late", of("late"), "late"],
    ["Linked", of("linked"), "linked"], ["Not linked", of("away"), "away"],
    ["Missing records", sum((e) => e.missing_records), ""], ["Lost records", lost, lost && "bad"]];
  summary.replaceChildren(...told.map(([name, value, kind]) => {
    const text = count(value) + (isPart && name === "Lost records" ? "+" : more);
    return el("div", { class: kind || null }, el("dt", {}, name),
      el("dd", {}, name === "Lost records" ? el("a", { href: "#/losses" }, text) : text));
  }));
}

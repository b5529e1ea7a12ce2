// The page of a node: how it is, what it waits for and why, and the messages that pass.

import { get, isSignedIn, signInForm, signOut } from "./ask.js";
import { aligned, Chart } from "./charts.js";
import { ago, badge, count, duration, el, notice, rate, size } from "./dom.js";
import { live, topics } from "./messages.js";
import { Rounds } from "./rounds.js";
import { Table } from "./table.js";
import { themes } from "./theme.js";

const by = (id) => document.getElementById(id);
const page = new AbortController();
const { signal } = page;
const FAR_S = 365 * 86400;
/** Time for which the oldest record may wait until the page says so above all else: the hub's rule of a silent edge. */
const BEHIND_S = 240;

const seconds = (value) => (value === null || value === undefined ? "unknown" : duration(value * 1000));

function figure(title, value, { kind, meter } = {}) {
  return el("div", { class: kind }, el("dt", {}, title), el("dd", {}, value, meter ?? null));
}

function outage(facts) {
  const left = facts.disk.outage_seconds_left;
  if (facts.log_error || facts.log_full || left === 0) return ["none", "bad"];
  if (left === null) return [facts.disk.bytes_per_second === null ? "unknown yet" : "no end", null];
  return [left > FAR_S ? "over a year" : seconds(left), left < 3600 ? "bad" : null];
}

let before = null;
let lastRate = null;

function showFigures(facts) {
  const { disk } = facts;
  const now = performance.now() / 1000;
  const records = before && now > before.now ? (disk.records - before.records) / (now - before.now) : lastRate;
  before = { now, records: disk.records };
  const used = disk.bytes / disk.budget_bytes;
  const [left, kind] = outage(facts);
  const links = Object.values(facts.links);
  const waiting = Math.max(0, ...links.map((each) => each.pending_records));
  by("figures").replaceChildren(
    figure("Records stored", rate(records)),
    figure("Waiting for a hub", links.length ? count(waiting) : "no link"),
    figure("Outage left", left, { kind }),
    figure("Disk", `${size(disk.bytes)} of ${size(disk.budget_bytes)}`, { kind: used > 0.9 ? "small bad" : "small",
      meter: el("meter", { min: 0, max: 1, high: 0.9, value: used, "aria-label": "Part of the disk budget in use" }) }),
    figure("Clients", count(facts.mqtt.connections)),
    figure("Clock", facts.clock, { kind: facts.clock === "synchronised" ? "small" : "small bad" }),
    figure("Up for", seconds(facts.uptime_seconds), { kind: "small" }));
}

function showAlarms(facts) {
  const found = [
    ...[facts.log_error, facts.log_full].filter(Boolean).map((text) => notice("bad", text)),
    ...[facts.log_low].filter(Boolean).map((text) => notice("warn", text)),
    ...Object.values(facts.conflicts).map((text) => notice("bad", text)),
    ...Object.entries(facts.links).filter(([, each]) => each.alarm).map(([name, each]) => notice("bad", `link ${name}: ${each.alarm}`)),
  ];
  for (const [name, each] of Object.entries(facts.functions || {})) {
    if (each.trouble) found.push(notice("bad", `functions of ${name}: ${each.trouble}`));
  }
  for (const [name, each] of Object.entries(facts.links)) {
    if (each.alarm || each.pending_seconds < BEHIND_S) continue;
    found.push(notice("warn", `link ${name}: ${count(each.pending_records)} records wait, the oldest for ${seconds(each.pending_seconds)}`, why(each)));
  }
  if (facts.recovery.records_lost) found.push(notice("warn", `${count(facts.recovery.records_lost)} records were lost before this start`));
  const texts = found.map((each) => each.textContent).join("\n");
  if (by("alarms").textContent !== found.map((each) => each.textContent).join("")) by("alarms").replaceChildren(...found);
  return texts;
}

const LINK_KINDS = { connected: "good", waiting: "bad" };
const links = new Table({ name: "Links", key: "name", empty: "The node has no link: its records stay here.", columns: [
  { key: "name", title: "Link", value: (row) => row.name },
  { key: "state", title: "State", value: (row) => row.state,
    cell: (row) => badge(row.paused || row.hold ? "warn" : LINK_KINDS[row.state] || "warn", row.paused ? "paused" : row.state) },
  { key: "pending", title: "Records waiting", kind: "number", value: (row) => row.pending_records, cell: (row) => count(row.pending_records) },
  { key: "behind", title: "Behind by", value: (row) => row.pending_seconds, cell: (row) => seconds(row.pending_seconds) },
  { key: "drain", title: "Drained in", value: (row) => row.drain_seconds, cell: (row) => (row.pending_records ? seconds(row.drain_seconds) : "") },
  { key: "acked", title: "Acknowledged", kind: "number", value: (row) => row.records_acked, cell: (row) => count(row.records_acked) },
  { key: "sent", title: "Sent", kind: "number", value: (row) => row.bytes_sent, cell: (row) => size(row.bytes_sent) },
  { key: "why", title: "Why it waits", kind: "wide", value: (row) => why(row) },
] });
const why = (link) => link.alarm || link.hold || (link.state === "connected" ? link.canary_alarm : link.last_error) || "";

const lost = (reasons) => Object.entries(reasons).map(([reason, number]) => `${count(number)} ${reason}`).join(", ");
const streams = new Table({ name: "Streams", key: "name", empty: "No stream is configured.", columns: [
  { key: "name", title: "Stream", value: (row) => row.name },
  { key: "records", title: "Records", kind: "number", value: (row) => row.next_seq, cell: (row) => count(row.next_seq) },
  { key: "wait", title: "Waiting for the disk", kind: "number", value: (row) => row.next_seq - row.durable_end, cell: (row) => count(row.next_seq - row.durable_end) },
  { key: "held", title: "Held here", kind: "number", value: (row) => row.held, cell: (row) => count(row.held) },
  { key: "bytes", title: "Size", kind: "number", value: (row) => row.bytes, cell: (row) => size(row.bytes) },
  { key: "lost", title: "Lost, with reasons", kind: "wide", value: (row) => row.records_lost, cell: (row) => lost(row.lost) },
] });

/** Tables that most nodes do not need: each appears with its first row. */
const more = [
  ["Functions", (facts) => facts.functions, new Table({ name: "Functions", key: "name", columns: [
    { key: "name", title: "Derived stream", value: (row) => row.name },
    { key: "in", title: "Rows in", kind: "number", value: (row) => row.rows_in, cell: (row) => count(row.rows_in) },
    { key: "out", title: "Rows out", kind: "number", value: (row) => row.rows_out, cell: (row) => count(row.rows_out) },
    { key: "rejected", title: "Rejected", kind: "number", value: (row) => row.rows_rejected, cell: (row) => count(row.rows_rejected) },
    { key: "lag", title: "Records waiting", kind: "number", value: (row) => row.lag_records, cell: (row) => count(row.lag_records) },
    { key: "state", title: "Remembers", kind: "number", value: (row) => row.state_bytes, cell: (row) => size(row.state_bytes) },
    { key: "trouble", title: "Trouble", kind: "wide", value: (row) => [row.trouble, row.refused, row.warning].filter(Boolean).join("; ") },
  ] })],
  ["Queues", (facts) => Object.fromEntries((facts.queues.longest || []).map((each) => [each.name ?? each.queue, each])),
    new Table({ name: "Queues", key: "name", sort: { key: "messages", down: true }, columns: [
      { key: "name", title: "Queue", value: (row) => row.name },
      { key: "messages", title: "Messages", kind: "number", value: (row) => row.messages, cell: (row) => count(row.messages) },
      { key: "unacknowledged", title: "Unacknowledged", kind: "number", value: (row) => row.unacknowledged, cell: (row) => count(row.unacknowledged) },
      { key: "consumers", title: "Consumers", kind: "number", value: (row) => row.consumers, cell: (row) => count(row.consumers) },
      { key: "bytes", title: "Size", kind: "number", value: (row) => row.bytes, cell: (row) => size(row.bytes ?? 0) },
    ] })],
  ["Sources", (facts) => facts.sources, new Table({ name: "Sources", key: "name", columns: [
    { key: "name", title: "Source", value: (row) => row.name },
    { key: "state", title: "State", value: (row) => row.state, cell: (row) => badge(row.state === "connected" ? "good" : "bad", row.state) },
    { key: "messages", title: "Messages", kind: "number", value: (row) => row.messages, cell: (row) => count(row.messages) },
    { key: "since", title: "Connected since", value: (row) => row.connected_since, cell: (row) => (row.connected_since ? ago(row.connected_since * 1000) : "") },
    { key: "rate", title: "Values", kind: "number", value: (row) => row.values_per_second, cell: (row) => (row.values_per_second === null ? "" : rate(row.values_per_second)) },
    { key: "lag", title: "Lag", value: (row) => row.lag_seconds, cell: (row) => (row.lag_seconds === null ? row.lag_unknown : seconds(row.lag_seconds)) },
    { key: "bad", title: "Bad values", kind: "number", value: (row) => row.bad_values, cell: (row) => (row.bad_values === null ? "" : count(row.bad_values)) },
    { key: "overflows", title: "Overflows", kind: "number", value: (row) => row.overflows, cell: (row) => (row.overflows === null ? "" : count(row.overflows)) },
    { key: "trouble", title: "Trouble", kind: "wide", value: (row) => row.trouble },
    { key: "error", title: "Last error", kind: "wide", value: (row) => row.last_error, cell: (row) => (row.last_error ? `${row.last_error} (${ago(row.last_error_time * 1000)})` : "") },
  ] })],
  ["Checked payloads", (facts) => facts.schemas, new Table({ name: "Checked payloads", key: "name", columns: [
    { key: "name", title: "Stream", value: (row) => row.name },
    { key: "checked", title: "Checked", kind: "number", value: (row) => row.checked, cell: (row) => count(row.checked) },
    { key: "accepted", title: "Accepted", kind: "number", value: (row) => row.accepted, cell: (row) => count(row.accepted) },
    { key: "dead", title: "Dead letters", kind: "number", value: (row) => row.dead_lettered, cell: (row) => count(row.dead_lettered) },
    { key: "refused", title: "Refused", kind: "number", value: (row) => row.refused, cell: (row) => count(row.refused) },
    { key: "last", title: "Last misfit in", kind: "wide", value: (row) => row.last_misfit ?? "" },
  ] })],
  ["Topics that no stream matches", (facts) => Object.fromEntries(facts.unrouted.busiest.map((each) => [each.topic, each])),
    new Table({ name: "Topics that no stream matches", key: "name", sort: { key: "messages", down: true }, columns: [
      { key: "name", title: "Topic", kind: "topic", value: (row) => row.name, cell: (row) => el("code", {}, row.name) },
      { key: "messages", title: "Messages", kind: "number", value: (row) => row.messages, cell: (row) => count(row.messages) },
    ] })],
  ["Refusals", (facts) => Object.fromEntries(facts.refusals.map((each) => [`${each.owner} ${each.bound}`, each])),
    new Table({ name: "Refusals", key: "name", sort: { key: "times", down: true }, columns: [
      { key: "owner", title: "Of", value: (row) => row.owner },
      { key: "bound", title: "Bound", value: (row) => row.bound, cell: (row) => el("code", {}, row.bound) },
      { key: "times", title: "Times", kind: "number", value: (row) => row.times, cell: (row) => count(row.times) },
    ] })],
].map(([title, rows, table]) => ({ rows, table, element: el("section", { hidden: true }, el("h2", {}, title), table.element) }));

const named = (facts) => Object.entries(facts || {}).map(([name, each]) => ({ name, ...each }));

async function showStatus() {
  let facts;
  try {
    facts = await get("status", {}, signal);
  } catch {
    state("off", "the node does not answer");
    return;
  }
  state("on", `now, ${new Date().toISOString().slice(11, 19)} UTC`);
  const name = `${facts.tenant}/${facts.node}`;
  if (by("name").textContent !== name) by("name").textContent = document.title = name;
  showAlarms(facts);
  showFigures(facts);
  links.show(named(facts.links));
  streams.show(named(facts.streams));
  for (const { rows, table, element } of more) {
    const found = named(rows(facts));
    element.hidden = !found.length;
    if (found.length) table.show(found);
  }
}

function state(kind, text) {
  by("state").className = `live ${kind}`;
  by("state").textContent = text;
}

const CHARTS = [
  ["Records stored a second", [["records", (figures) => figures.records_per_second]]],
  ["Milliseconds to an acknowledgement", [["half", (figures) => figures.ack_p50_seconds.map(times(1000))], ["99 of 100", (figures) => figures.ack_p99_seconds.map(times(1000))]]],
  ["Records that wait for a hub", [["records", (figures) => figures.waiting_records]]],
  ["Disk in MiB", [["in use", (figures) => figures.disk_bytes.map(times(1 / 1048576))]]],
];
const times = (factor) => (value) => (value === null ? null : value * factor);
let span = "hour";

function chartsOf(root) {
  const charts = CHARTS.map(([title, lines]) => {
    const chart = new Chart({ label: title, height: 160, leastSeconds: 60, signal });
    root.append(el("figure", {}, el("figcaption", {}, title), chart.element));
    return [chart, lines];
  });
  return new Rounds(async () => {
    const { times: at, figures, interval_seconds: step } = await get("history", { span }, signal);
    lastRate = figures.records_per_second.at(-1) ?? null;
    // A pause of the node is a gap, and not a line from before to after.
    const points = (values) => at.flatMap((second, n) =>
      (n && second - at[n - 1] > 2.5 * step ? [[(at[n - 1] + step) * 1000, null], [second * 1000, values[n]]] : [[second * 1000, values[n]]]));
    for (const [chart, lines] of at.length ? charts : []) {
      chart.show(lines.map(([name]) => name), aligned(lines.map(([name, of]) => ({ name, points: points(of(figures)) }))));
    }
  }, { restMs: 10000, signal });
}

let watching = null;

/** Show messages, or the form for a user where the node asks for one. */
function showMessages() {
  watching?.abort();
  watching = new AbortController();
  by("leave").hidden = !isSignedIn();
  const refused = (error) => {
    if (error.status !== 401) return false;
    watching.abort();
    by("live").replaceChildren();
    by("topics").replaceChildren(el("h2", {}, "Messages"), signInForm(error, showMessages));
    signOut();
    by("leave").hidden = true;
    return true;
  };
  topics(by("topics"), { signal: watching.signal, refused });
  live(by("live"), { signal: watching.signal, refused });
}

by("links").append(el("h2", {}, "Links"), links.element);
by("streams").append(el("h2", {}, "Streams"), streams.element);
by("more").append(...more.map(({ element }) => element));
themes(by("theme"));
by("leave").addEventListener("click", () => {
  signOut();
  showMessages();
});
const charts = chartsOf(by("charts"));
for (const button of document.querySelectorAll("[data-span]")) {
  button.addEventListener("click", () => {
    span = button.dataset.span;
    for (const each of document.querySelectorAll("[data-span]")) each.setAttribute("aria-pressed", String(each === button));
    charts.poke();
  });
}
new Rounds(showStatus, { restMs: 2000, signal });
showMessages();

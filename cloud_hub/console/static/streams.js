// The list of a tenant's streams, and of their tables.

import * as api from "./api.js";
import { badge, count, el, millis, notice, page, rate, size, when } from "./dom.js";
import { Table } from "./table.js";

export const streamLink = (name) => el("a", { href: `#/streams/${encodeURIComponent(name)}` }, name);

const KINDS = ["good", "warn", "bad"];
const RANKS = { info: 0, warning: 1, error: 2 };

/** Return the reasons that ask something of people, or all if none does, and the mark of the worst. */
export function standing(reasons) {
  const rank = (each) => RANKS[each.severity] ?? 1;
  const worst = Math.max(0, ...reasons.map(rank));
  return { mark: KINDS[worst], told: worst ? reasons.filter(rank) : reasons };
}

/** Streams with losses are first, then those that are held back; in each kind, the one that has waited for the longest time. */
function urgency(stream) {
  const { mark } = standing(stream.held_back_by);
  return (2 - KINDS.indexOf(mark)) * 1e15 + (mark === "good" ? 0 : millis(stream.complete_up_to) ?? 0);
}

function completeUpTo(stream) {
  const { mark, told } = standing(stream.held_back_by);
  const age = stream.complete_up_to ? when(stream.complete_up_to) : el("span", { class: "unknown" }, "unknown");
  if (mark === "good") return age;
  const who = told.map((each) => `${each.edge || each.reason}: ${each.why}`).join("\n");
  return el("span", {}, age, " ", badge(mark, mark === "bad" ? "losses" : "held back", who));
}

const STREAMS = [
  { key: "stream", title: "Stream", value: (s) => s.stream, cell: (s) => streamLink(s.stream) },
  { key: "records", title: "Records", kind: "number", value: (s) => s.records, cell: (s) => count(s.records) },
  { key: "rate", title: "Rate", kind: "number", value: (s) => s.records_per_second, cell: (s) => rate(s.records_per_second) },
  { key: "complete", title: "Complete up to", value: urgency, cell: completeUpTo },
  { key: "edges", title: "Edges", kind: "number", value: (s) => s.edges, cell: (s) => count(s.edges) },
  { key: "payload", title: "Payload", value: (s) => s.payload },
  { key: "look", title: "Read", value: () => null,
    cell: (s) => el("a", { href: `#/records/${encodeURIComponent(s.stream)}`, "aria-label": `Records of ${s.stream}` }, "Records") },
];

const of = (value) => (stream) => (stream.table ? value(stream.table) : null);
const TABLES = [
  { key: "stream", title: "Stream", value: (s) => s.stream, cell: (s) => streamLink(s.stream) },
  { key: "state", title: "State", value: of((t) => (t.error ? 0 : t.is_stopped ? 1 : 2)), cell: (s) => {
    if (!s.table) return el("span", { class: "unknown" }, "not known here");
    if (s.table.error) return el("div", { class: "wide" }, badge("bad", "error"), " ", s.table.error);
    return s.table.is_stopped ? badge("warn", "waits", "It has records that cannot become rows.") : badge("good", "good");
  } },
  { key: "rows", title: "Rows", kind: "number", value: (s) => s.table_rows, cell: (s) => count(s.table_rows) },
  { key: "lag", rare: true, title: "Records without a row", kind: "number", value: of((t) => t.lag_records),
    cell: (s) => (s.table ? count(s.table.lag_records) : "") },
  { key: "committed", rare: true, title: "Last commit", value: of((t) => millis(t.committed_at) ?? 0),
    cell: (s) => (s.table ? when(s.table.committed_at) : "") },
  { key: "maker", rare: true, title: "Made by", value: of((t) => t.made_by ?? ""),
    cell: (s) => s.table && (s.table.made_by || el("span", { class: "unknown" }, "unknown")) },
  { key: "vacuum", rare: true, title: "Last vacuum", value: of((t) => millis(t.vacuumed_at) ?? 0),
    cell: (s) => s.table && (s.table.vacuumed_at ? when(s.table.vacuumed_at)
      : el("span", { class: "unknown", title: "None that removed files is in what this process has read." }, "unknown")) },
  { key: "files", rare: true, title: "Files", kind: "number", value: of((t) => t.files), cell: (s) => (s.table ? count(s.table.files) : "") },
  { key: "bytes", rare: true, title: "Size", kind: "number", value: of((t) => t.bytes), cell: (s) => (s.table ? size(s.table.bytes) : "") },
  { key: "version", rare: true, title: "Version", kind: "number", value: of((t) => t.version), cell: (s) => (s.table ? count(s.table.version) : "") },
  { key: "columns", rare: true, title: "Columns", kind: "number", value: of((t) => t.columns.length),
    cell: (s) => s.table && el("details", {}, el("summary", {}, count(s.table.columns.length)),
      el("ul", { class: "plain" }, s.table.columns.map((c) => el("li", {}, el("code", {}, `${c.name} ${c.type}`))))) },
  { key: "path", rare: true, title: "Path in the store", value: of((t) => t.path), cell: (s) => s.table && el("code", {}, s.table.path) },
];

const list = (title, columns, sort) => ({ main, signal, onChange }) => {
  const table = new Table({ name: title, columns, sort, empty: "No stream. It is here with its first record." });
  const troubles = el("div");
  const text = el("input", { type: "search", id: "stream-filter", placeholder: "name" });
  text.addEventListener("input", () => {
    const word = text.value.toLowerCase();
    table.filter((each) => each.stream.includes(word));
  });
  main.replaceChildren(...page(title, troubles,
    el("form", { class: "filters", role: "search", "aria-label": title, onsubmit: (e) => e.preventDefault() },
      el("label", { for: "stream-filter" }, "Filter"), text), table.element));
  const rounds = new api.Rounds(async () => {
    const streams = [];
    const isFirst = !table.rows.length;
    try {
      for await (const { answer, isLast } of api.pages("streams", { signal })) {
        streams.push(...answer.streams);
        if (isFirst || isLast) table.show(streams.slice());
        const missing = (answer.missing_shards || []).length;
        troubles.replaceChildren(...(missing ? [notice("warn", `${missing} shards cannot be read.`)] : []));
      }
    } catch (error) {
      if (!signal.aborted) troubles.replaceChildren(notice("bad", error.message, error.advice));
    }
  }, { leastMs: 5000, restMs: 30000, signal });
  onChange((event) => (event.streams.length || event.streams_more) && rounds.poke());
};

export const streams = list("Streams", STREAMS, { key: "complete", down: false });
export const tables = list("Tables", TABLES, { key: "state", down: false });

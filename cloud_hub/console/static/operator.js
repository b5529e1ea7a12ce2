// What an operator sees: the processes of the hub, and the record of administrative acts.

import * as api from "./api.js";
import { badge, count, el, millis, notice, page, utc } from "./dom.js";
import { Table } from "./table.js";

const SHARDS = [
  { key: "shard", title: "Shard", value: (s) => s.shard },
  { key: "owner", title: "Owner", value: (s) => s.owner, cell: (s) => (s.own ? badge("good", "this process") : s.owner || "unknown") },
  { key: "trouble", title: "Store", value: (s) => (s.trouble ? 0 : 1),
    cell: (s) => (s.trouble ? el("span", {}, badge("bad", "trouble"), ` ${s.trouble}`) : "good") },
  { key: "lanes", title: "Lanes", kind: "number", value: (s) => s.lanes, cell: (s) => count(s.lanes) },
  { key: "sessions", title: "Sessions", kind: "number", value: (s) => s.sessions, cell: (s) => count(s.sessions) },
  { key: "pending", title: "Bytes waiting", kind: "number", value: (s) => s.pending_bytes, cell: (s) => count(s.pending_bytes) },
  { key: "chunk", title: "Last chunk", kind: "number", value: (s) => s.chunk, cell: (s) => (s.chunk === null ? "none" : count(s.chunk)) },
  { key: "records", title: "Records written", kind: "number", value: (s) => s.written.records, cell: (s) => count(s.written.records) },
];

export function nodes({ main, signal }) {
  const figures = el("dl", { class: "figures", "aria-label": "Summary" });
  const troubles = el("div");
  const peers = el("ul", { class: "plain" });
  const shards = new Table({ name: "Shards that this process holds", columns: SHARDS });
  main.replaceChildren(...page("Nodes", figures, troubles, el("h2", {}, "Other processes of this machine"), peers,
    el("h2", {}, "Shards that this process holds"), shards.element,
    el("p", { class: "advice" }, "All machines of the cluster: ", el("code", {}, "weft hub nodes hub.yaml"), ".")));
  new api.Rounds(async () => {
    try {
      const now = await api.get("status", { tenant: null }, signal);
      const told = [["Name", now.name || "unknown"], ["Release", now.software], ["State", now.state, now.state === "ready" ? "" : "bad"],
        ["Links", count(now.links.length)], ["Process", `${now.process + 1} of ${now.processes}`],
        ["Clock", `${now.clock.off_seconds > 0 ? "+" : ""}${now.clock.off_seconds.toFixed(1)} s`, now.clock.trouble && "bad"],
        ["Level", count(now.level)]];
      figures.replaceChildren(...told.map(([title, value, kind]) =>
        el("div", { class: `small ${kind || ""}` }, el("dt", {}, title), el("dd", {}, value))));
      const wrong = [now.clock.trouble, now.cluster_log.trouble, now.tables_trouble,
        ...now.conflicts.map((each) => `${each.tenant}/${each.edge}, ${each.stream}: ${each.why}`),
        ...now.lost.map((each) => `${each.tenant}/${each.edge}, ${each.stream}: the hub lacks ${count(each.records)} records that it had acknowledged`)];
      troubles.replaceChildren(...wrong.filter(Boolean).slice(0, 20).map((each) => notice("bad", each)));
      peers.replaceChildren(...(now.peers.length ? now.peers.map((each) => el("li", {}, `process ${each.process + 1}, port ${each.port} `,
        each.url ? el("code", {}, each.url) : "")) : [el("li", {}, "none")]));
      shards.show(now.shards);
    } catch (error) {
      if (!signal.aborted) troubles.replaceChildren(notice("bad", error.message, error.advice));
    }
  }, { leastMs: 5000, restMs: 15000, signal });
}

const ACTS = [
  { key: "entry", title: "Line", value: (a) => a.entry },
  { key: "at", title: "When (UTC)", value: (a) => millis(a.at), cell: (a) => utc(millis(a.at)) },
  { key: "by", title: "Who", value: (a) => a.by },
  { key: "origin", title: "From", value: (a) => a.origin, cell: (a) => el("code", {}, a.origin) },
  { key: "act", title: "Act", value: (a) => a.act, cell: (a) => (a.act === "unusable" ? badge("bad", a.act) : a.act) },
  { key: "name", title: "What", value: (a) => `${a.kind} ${a.name}`, cell: (a) => `${a.kind} ${a.name}${a.target ? `, ${a.target}` : ""}` },
  { key: "command", title: "Command", value: (a) => a.command, cell: (a) => (a.command ? el("code", {}, a.command) : "") },
  { key: "reason", title: "Why", value: (a) => a.reason },
];
const ACTS_LISTED = 200;

export function audit({ main, signal, onChange }) {
  const troubles = el("div");
  const table = new Table({ name: "Administrative acts", columns: ACTS, sort: { key: "entry", down: true },
    empty: "No act yet: neither a token nor a tenant was declared." });
  const earlier = el("button", { type: "button", hidden: true, onclick: () => read(Math.max(0, first - 1 - ACTS_LISTED)) }, "Earlier acts");
  const lines = new Map();
  let first = 0;
  main.replaceChildren(...page("Audit log",
    el("p", { class: "advice" }, "Every administrative act at this hub's store: who, when, what and why. Lines are never deleted."),
    troubles, table.element, earlier));

  async function read(after) {
    try {
      const answer = await api.get("acts", { tenant: null, limit: ACTS_LISTED, after }, signal);
      for (const each of answer.acts) lines.set(each.entry, each);
      first = Math.min(...lines.keys());
      earlier.hidden = !(first > 1);
      table.show([...lines.values()]);
      troubles.replaceChildren();
      return answer;
    } catch (error) {
      if (!signal.aborted) troubles.replaceChildren(notice("bad", error.message, error.advice));
      return null;
    }
  }

  let last = null;
  read().then((answer) => { last = answer?.last ?? null; });
  onChange(async (event) => {
    if (last === null || event.acts === undefined || event.acts <= last) return;
    last = (await read(last))?.last ?? last;
  });
}

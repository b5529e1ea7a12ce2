// What an operator sees: the processes of the hub, and the record of administrative acts.

import * as api from "./api.js";
import { ask, button, may, post, reason, remove } from "./acting.js";
import { badge, count, el, millis, notice, page, utc } from "./dom.js";
import { Table } from "./table.js";

const SHARDS = [
  { key: "shard", title: "Shard", value: (s) => s.shard },
  { key: "owner", title: "Owner", value: (s) => s.owner, cell: (s) => (s.own ? badge("good", "this process") : s.owner || "unknown") },
  { key: "trouble", title: "Store", value: (s) => (s.trouble ? 0 : 1),
    cell: (s) => (s.trouble ? el("div", { class: "wide" }, badge("bad", "trouble"), ` ${s.trouble}`) : "good") },
  { key: "lanes", title: "Lanes", kind: "number", value: (s) => s.lanes, cell: (s) => count(s.lanes) },
  { key: "sessions", title: "Sessions", kind: "number", value: (s) => s.sessions, cell: (s) => count(s.sessions) },
  { key: "pending", title: "Bytes waiting", kind: "number", value: (s) => s.pending_bytes, cell: (s) => count(s.pending_bytes) },
  { key: "chunk", title: "Last chunk", kind: "number", value: (s) => s.chunk, cell: (s) => (s.chunk === null ? "none" : count(s.chunk)) },
  { key: "records", title: "Records written", kind: "number", value: (s) => s.written.records, cell: (s) => count(s.written.records) },
];

const BUSY = 0.9;
const CLOCK_BAD_S = 5;
const unknown = () => el("span", { class: "unknown" }, "unknown");

/** Cores that a process used lately, of those that it may use. */
function load({ load: used, cores }) {
  if (used === null || used === undefined) return unknown();
  const text = `${used.toFixed(2)} of ${count(cores)} cores`;
  return used >= BUSY * cores ? badge("warn", text, "It has hardly any time left.") : text;
}

function clock({ clock_off_seconds: off }) {
  if (off === null || off === undefined) return unknown();
  const text = `${off > 0 ? "+" : ""}${off.toFixed(1)} s`;
  return Math.abs(off) >= CLOCK_BAD_S ? badge("bad", text, "The process takes no new work until its clock is right.") : text;
}

const STATES = { ready: "good", joining: "warn", leaving: "warn" };
const NODES = [
  { key: "name", title: "Process", value: (n) => n.name || n.url },
  { key: "host", title: "Machine", value: (n) => n.host },
  { key: "state", title: "State", value: (n) => (STATES[n.state] === "good" && !n.drain ? 1 : 0), cell: (n) => el("span", {}, badge(STATES[n.state] || "bad", n.state),
    n.drain ? el("span", { title: n.drain.reason }, ` drained by ${n.drain.by}`) : "") },
  { key: "owns", title: "Owns shards", value: (n) => n.owns.length, cell: (n) => n.owns.join(", ") || "none" },
  { key: "loaded", title: "Has loaded", kind: "number", value: (n) => n.shards.length, cell: (n) => count(n.shards.length) },
  { key: "links", title: "Links", kind: "number", value: (n) => n.links, cell: (n) => count(n.links) },
  { key: "load", title: "Load", kind: "number", value: (n) => n.load ?? null, cell: load },
  { key: "clock", title: "Clock", kind: "number", value: (n) => n.clock_off_seconds ?? null, cell: clock },
  { key: "software", title: "Release", kind: "short", value: (n) => n.software },
  { key: "seen", title: "Seen", kind: "number", value: (n) => n.seen_seconds_ago, cell: (n) => `${count(Math.round(n.seen_seconds_ago))} s ago` },
];

export function nodes({ main, signal, me }) {
  const figures = el("dl", { class: "figures", "aria-label": "Summary" });
  const troubles = el("div");
  const said = el("div", { role: "status" });
  const isActing = may(me, "nodes");
  const doing = (cell) => (isActing ? [{ key: "do", title: "Do", value: () => null, cell }] : []);
  const processes = new Table({ name: "Processes of the hub", sort: { key: "state", down: false }, empty: "No process has said that it runs.", columns: [...NODES, ...doing((n) => n.name && (n.drain
    ? button("Take back the drain of", n.drain.node, () => undo(n.drain.node)) : button("Drain", n.name, () => drain(n))))] });
  const shards = new Table({ name: "Shards that this process holds", sort: { key: "trouble", down: false },
    columns: [...SHARDS, ...doing((s) => s.own && button("Split", `shard ${s.shard}`, () => split(s.shard)))] });
  const away = el("ul", { class: "plain" });
  main.replaceChildren(...page("Nodes", said, troubles, processes.element, away, el("h2", {}, "The process that answers"), figures,
    el("h2", {}, "Shards that it holds"), shards.element, isActing ? "" : el("p", { class: "advice" },
      "To drain processes and to split shards takes a token with the grant nodes, or the commands ",
      el("code", {}, "weft hub drain"), " and ", el("code", {}, "weft hub split"), ".")));

  function drain(node) {
    ask({
      title: `Drain ${node.name}?`, verb: "Drain",
      text: `Others take its ${node.owns.length} shards, and its ${count(node.links)} links are sent on to them: each edge is without a hub for a moment, and loses nothing. The process continues running until somebody stops it.`,
      act: async (given) => {
        await post("drains", { node: node.name, reason: given.reason });
        told(`${node.name} is drained: its shards and edges go to the others within seconds.`);
      },
    });
  }

  function undo(name) {
    ask({
      title: `Take back the drain of ${name}?`, verb: "Take back", text: "It takes shards and edges again within seconds.",
      act: async (given) => {
        await remove("drains", { node: name, reason: given.reason });
        told(`${name} takes shards and edges again within seconds.`);
      },
    });
  }

  async function split(shard) {
    try {
      const look = await api.get("splits", { tenant: null, shard }, signal);
      ask({
        title: `Split shard ${shard}?`, verb: "Split",
        text: `${count(look.moving)} of its ${count(look.moving + look.staying)} edges move to a new shard, and link again within seconds. Nothing is lost or doubled. It cannot be reverted.`,
        fields: [reason()],
        act: async (given) => {
          const done = await post("splits", { shard, reason: given.reason });
          told(`Shard ${shard} is split: ${count(done.moved)} edges are in shard ${done.new_shard}.`);
        },
      });
    } catch (error) {
      if (!signal.aborted) said.replaceChildren(notice("bad", error.message, error.advice));
    }
  }

  function told(text) {
    said.replaceChildren(notice("good", text));
    rounds.poke();
  }

  async function showProcesses() {
    const { nodes: there } = await api.get("nodes", { tenant: null }, signal);
    const { drains } = await api.get("drains", { tenant: null }, signal);
    const drainOf = (node) => drains.find((each) => each.node === node.name || each.node === node.host);
    processes.show(there.map((each) => ({ ...each, drain: drainOf(each) })));
    const gone = drains.filter((each) => !there.some((node) => drainOf(node) === each));
    away.replaceChildren(...gone.map((each) => el("li", {}, "Drained, and not here: ", el("code", {}, each.node), ` since ${utc(millis(each.since))}, by ${each.by}. `,
      isActing ? button("Take back the drain of", each.node, () => undo(each.node)) : "")));
  }

  const rounds = new api.Rounds(async () => {
    try {
      await showProcesses();
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
      shards.show(now.shards);
    } catch (error) {
      if (!signal.aborted) troubles.replaceChildren(notice("bad", error.message, error.advice));
    }
  }, { leastMs: 5000, restMs: 15000, signal });
}

const NAMES_SHOWN = 3;

/** What an act was about; of many facts the number, which opens. */
function what({ entry, kind, name, target }) {
  const names = target.split(", ");
  if (names[0] !== name) return `${kind} ${name}${target ? `, ${target}` : ""}`;
  if (names.length <= NAMES_SHOWN) return `${kind} ${target}`;
  return el("details", { class: "line" },
    el("summary", { "data-named": `act ${entry}` }, `${count(names.length)} ${kind}s: ${names.slice(0, NAMES_SHOWN).join(", ")}, ...`),
    el("div", { class: "names", tabindex: "0", role: "region", "aria-label": `Names in line ${entry}` }, target));
}

export const ACTS = [
  { key: "entry", title: "Line", value: (a) => a.entry },
  { key: "at", title: "When (UTC)", kind: "short", value: (a) => millis(a.at), cell: (a) => utc(millis(a.at)) },
  { key: "by", title: "Who", value: (a) => a.by },
  { key: "origin", title: "From", rare: true, value: (a) => a.origin || null, cell: (a) => el("code", {}, a.origin) },
  { key: "act", title: "Act", value: (a) => a.act, cell: (a) => (a.act === "unusable" ? badge("bad", a.act) : a.act) },
  { key: "name", title: "What", value: (a) => `${a.kind} ${a.name}`, cell: what },
  { key: "command", title: "Command", rare: true, kind: "wide", value: (a) => a.command || null, cell: (a) => (a.command ? el("code", {}, a.command) : "") },
  { key: "reason", title: "Why", rare: true, kind: "wide", value: (a) => a.reason || null },
];
export const ACTS_LISTED = 200;

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
      earlier.hidden = !(first > 1 && lines.size);
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

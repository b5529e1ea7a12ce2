// One edge: how it is, what holds it back, and up to when each of its streams is here.

import * as api from "./api.js";
import { sees } from "./acting.js";
import { disk, outageLeft, stateBadge } from "./fleet.js";
import { absent, ago, badge, count, duration, el, millis, notice, page, prose, sentence, when } from "./dom.js";
import { ACTS, ACTS_LISTED } from "./operator.js";
import { Span } from "./span.js";
import { findBegins, findGaps, SEARCHES } from "./stream.js";
import { streamLink } from "./streams.js";
import { Table } from "./table.js";
import { Places, segments, Timeline } from "./timeline.js";

const LANES_MAX = 8;
const ASKED_AT_ONCE = 6;
const HOUR_MINUTES = 60;
/** The rule of `severity` in the API: waiting does not end them. */
const ACTS_NEEDED = new Set(["conflict", "lost_records", "absent_records", "functions_fail"]);

export const edgeLink = (edge) => el("a", { href: `#/edges/${encodeURIComponent(edge.tenant)}/${encodeURIComponent(edge.edge)}` }, edge.edge);

/** The lanes of the edge, each with its stream: streams are asked some at a time. */
async function lanesOf({ tenant, edge, stream_names: names }, signal) {
  const found = [];
  const after = `${edge}/${"0".repeat(16)}`;
  const ask = async (stream) => {
    const { lanes } = await api.get(api.ofStream(stream, "/completeness"), { tenant, after, limit: LANES_MAX }, signal).catch((error) => {
      if (error.status === 403 || error.status === 404) return { lanes: [] }; // the token may not read it
      throw error;
    });
    return lanes.filter((lane) => lane.edge === edge).map((lane) => ({ ...lane, stream }));
  };
  for (let at = 0; at < names.length; at += ASKED_AT_ONCE) {
    found.push(...(await Promise.all(names.slice(at, at + ASKED_AT_ONCE).map(ask))).flat());
  }
  return found;
}

const COLUMNS = (places) => [
  { key: "stream", title: "Stream", value: (l) => l.stream, cell: (l) => streamLink(l.stream) },
  { key: "log", title: "Log", kind: "short", value: (l) => l.log, cell: (l) => el("code", {}, l.log) },
  { key: "complete", title: "Complete up to", value: (l) => millis(l.complete_up_to), cell: (l) => when(l.complete_up_to) },
  { key: "pending", title: "To come", kind: "number", value: (l) => l.holes.reduce((sum, h) => sum + h.end - h.first, 0) },
  { key: "gaps", title: "Never comes", kind: "wide", value: (l) => -l.gaps.length, cell: (l) => el("ul", { class: "plain" },
    segments(l, places, Date.now()).filter((each) => each.reason).map((each) => el("li", {}, badge("bad", each.reason), ` ${each.text}`))) },
  { key: "records", title: "Read", value: () => null, cell: (l) =>
    el("a", { href: `#/records/${encodeURIComponent(l.stream)}?${new URLSearchParams({ edge: l.edge })}`, "aria-label": `Records of ${l.stream}` }, "Records") },
];

const FUNCTIONS = [
  { key: "stream", title: "Derived stream", value: (f) => f.stream },
  { key: "kinds", title: "Functions", value: (f) => f.kinds },
  { key: "in", title: "Rows in", kind: "number", value: (f) => f.rows_in, cell: (f) => count(f.rows_in) },
  { key: "out", title: "Rows out", kind: "number", value: (f) => f.rows_out, cell: (f) => count(f.rows_out) },
  { key: "errors", title: "Errors", kind: "number", value: (f) => f.errors,
    cell: (f) => (f.errors ? badge("warn", count(f.errors)) : "0") },
  { key: "last", title: "Last error", kind: "wide", value: (f) => f.last_error, cell: (f) => f.last_error || "" },
];

/** Lines of the record of acts that name an edge, among the newest. */
function actsOf(name, { signal, onChange, me }) {
  const table = new Table({ name: "Acts that name this edge", columns: ACTS, sort: { key: "entry", down: true },
    empty: `None of the newest ${ACTS_LISTED} acts names it.` });
  const element = el("section", { hidden: !sees(me, "acts") }, el("h2", {}, "What was done about it"), table.element);
  const names = (act) => [act.name, act.target, act.reason].some((text) => text.split(/[^a-z0-9_-]+/).includes(name));
  let last = null;
  const read = async () => {
    try {
      const answer = await api.get("acts", { tenant: null, limit: ACTS_LISTED }, signal);
      last = answer.last;
      table.show(answer.acts.filter(names));
    } catch (error) {
      if (!signal.aborted) element.append(notice("bad", error.message, error.advice));
    }
  };
  if (!element.hidden) read();
  onChange(({ acts }) => last !== null && acts !== undefined && acts > last && read());
  return element;
}

export function edge({ main, signal, onChange, me, rest: [tenant, name] }) {
  const places = new Places();
  const asked = new Map();
  const figures = el("dl", { class: "figures", "aria-label": "Summary" });
  const troubles = el("div");
  const alarms = el("div");
  const timeline = new Timeline((lane) => lane.stream);
  const table = new Table({ name: "Lanes", columns: COLUMNS(places), empty: "No lane." });
  const said = el("p", { class: "advice" });
  const unfound = el("p", { class: "advice", role: "status" });
  const functions = new Table({ name: "Functions", columns: FUNCTIONS, empty: "It has none." });
  const aboutFunctions = el("p", { class: "advice" });
  let lanes = [];
  const draw = () => timeline.show({ lanes, places, from: span.from, to: span.to, moment: null });
  const span = new Span({ minutes: HOUR_MINUTES, changed: draw });
  timeline.attach(span);
  const sizes = new ResizeObserver(draw);
  sizes.observe(main);
  signal.addEventListener("abort", () => sizes.disconnect());
  main.replaceChildren(...page(name || "", troubles, alarms, figures, el("h2", {}, "Completeness over time, by stream"), span.element,
    timeline.element, unfound, table.element, said, el("h2", {}, "Functions"), functions.element, aboutFunctions, actsOf(name, { signal, onChange, me })));

  const rounds = new api.Rounds(async () => {
    try {
      let facts;
      try {
        facts = await api.get(`edges/${encodeURIComponent(name)}`, { tenant }, signal);
      } catch (error) {
        if (error.status !== 404) throw error;
        return absent(main, troubles, `The hub knows no edge ${name}.`, el("a", { href: "#/fleet" }, "All edges"));
      }
      delete main.dataset.absent;
      show(facts);
      lanes = await lanesOf(facts, signal);
      for (const lane of lanes) places.learn(lane);
      const read = new Set(lanes.map((lane) => lane.stream)).size;
      said.textContent = read < facts.streams ? `${count(read)} of its ${count(facts.streams)} streams: those that this token may read, of the first 64.` : "";
      draw();
      table.show(lanes);
      troubles.replaceChildren();
      searched.poke();
    } catch (error) {
      if (!signal.aborted) troubles.replaceChildren(notice("bad", error.message, error.advice));
    }
  }, { leastMs: 2000, restMs: 10000, signal });
  const searched = new api.Rounds(async () => {
    try {
      for (const stream of new Set(lanes.map((lane) => lane.stream))) {
        const at = { name: stream, tenant, places, asked };
        const mine = lanes.filter((lane) => lane.stream === stream);
        if (await findBegins(at, mine, span.from, signal)) draw();
        if (!mine.some((lane) => lane.gaps.length)) continue;
        if (!(await findGaps(at, await api.get(api.ofStream(stream), { tenant }, signal), mine, signal))) continue;
        draw();
        table.show(lanes);
      }
      unfound.textContent = "";
    } catch (error) {
      if (!signal.aborted) unfound.textContent = `Where lanes begin and gaps lie is not known yet: ${error.message}.`;
    }
  }, { ...SEARCHES, signal });
  onChange((event) => (event.edges.includes(name) || event.streams.some((each) => lanes.some((lane) => lane.stream === each))) && rounds.poke());

  function show(facts) {
    const now = Date.now();
    const complete = millis(facts.complete_up_to);
    const told = [["State", stateBadge(facts)], ["Complete up to", complete === null ? "unknown" : ago(complete, now)],
      ...(facts.disk ? [["Outage left", outageLeft(facts, now)], ["Disk", disk(facts, now), "small"]] : []),
      ["Last seen", ago(millis(facts.last_seen), now)], ["Missing records", count(facts.missing_records), facts.missing_records ? "bad" : ""],
      ["Lost records", count(facts.lost_records), facts.lost_records ? "bad" : ""],
      ["Linked for", facts.connected_since ? duration(now - millis(facts.connected_since)) : "not linked", "small"],
      ["Linked to", facts.connected_at, "small"], ["Release", facts.software, "small"],
      ["Clock off by", (facts.clock_off_seconds ?? null) === null ? null : `${facts.clock_off_seconds.toFixed(1)} s`, "small"],
      ["Groups", (facts.groups || []).join(", "), "small"], ["Logs", facts.logs.length > 1 && count(facts.logs.length), "small"]].filter(([, value]) => value);
    figures.replaceChildren(...told.map(([title, value, kind]) => el("div", { class: kind || null }, el("dt", {}, title), el("dd", {}, value))));
    functions.show(facts.functions || []);
    functions.element.hidden = facts.functions === null;
    aboutFunctions.textContent = facts.functions === null
      ? "Not known: the edge is not linked, or its release does not report them."
      : facts.functions_more ? `${count(facts.functions_more)} more are on the edge's own page.` : "";
    alarms.replaceChildren(...facts.alarms.map((each) =>
      notice(ACTS_NEEDED.has(each.reason) ? "bad" : "warn", `${each.reason.replaceAll("_", " ")}: ${each.why}.`, `${sentence(each.what_to_do)} (stream ${each.stream}, ${count(each.lanes)} lanes)`)));
  }
}

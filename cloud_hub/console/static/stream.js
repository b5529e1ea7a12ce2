// One stream: its figures, its completeness over time, what holds it back, and its rate.

import * as api from "./api.js";
import { Chart } from "./charts.js";
import { absent, ago, badge, count, el, millis, notice, page, prose, rate, sentence, utc } from "./dom.js";
import { edgeLink } from "./edge.js";
import { Field } from "./field.js";
import { Span } from "./span.js";
import { standing } from "./streams.js";
import { Table } from "./table.js";
import { firstSeq, gapKey, laneKey, Places, segments, Timeline } from "./timeline.js";

/** Lanes that are asked for at a time, and drawn of these. */
const LANES = 500;
const DRAWN = 50;
const GROUPS_SHOWN = 5;
const EDGES_NAMED = 8;
const SILENT_MS = 240_000;
const HOUR_MINUTES = 60;
const RATES_KEPT = 720;
const CLOSER_MAX = 5;
const STEPS = 40;
const FIRST_OF = 20;
const BEGINS_AT_ONCE = 2000;
const ONE_BY_ONE = 8;
/** Rounds of searches, apart from those that read what is new: a search takes many requests, and a long pause follows. */
export const SEARCHES = { leastMs: 2000, restMs: 30000, mostMs: 30000 };
const GONE = 410;

const COLUMNS = (places) => [
  { key: "edge", title: "Edge", value: (l) => l.edge },
  { key: "log", title: "Log", kind: "short", value: (l) => l.log, cell: (l) => el("code", {}, l.log) },
  { key: "complete", title: "Complete up to (UTC)", kind: "short", value: (l) => millis(l.complete_up_to),
    cell: (l) => utc(millis(l.complete_up_to)) },
  { key: "pending", title: "To come", kind: "number", value: (l) => l.holes.reduce((sum, h) => sum + h.end - h.first, 0),
    cell: (l) => count(l.holes.reduce((sum, h) => sum + h.end - h.first, 0)) },
  { key: "gaps", title: "Never comes", kind: "wide", value: (l) => -l.gaps.length, cell: (l) => {
    const told = segments(l, places, Date.now()).filter((each) => each.reason);
    return told.length ? el("ul", { class: "plain" }, told.map((each) => el("li", {}, badge("bad", each.reason), ` ${each.text}`))) : "";
  } },
];

export function stream({ main, signal, onChange, rest: [name], query }) {
  const places = new Places();
  const at = { name, places, after: null, before: [], lanes: [], next: null, answer: null, drawn: DRAWN };
  const rates = [];
  const figures = el("dl", { class: "figures", "aria-label": "Summary" });
  const troubles = el("div");
  const reasons = el("div");
  const timeline = new Timeline();
  const verdict = el("p", { class: "advice verdict" });
  const unfound = el("p", { class: "advice", role: "status" });
  const table = new Table({ name: "Lanes", columns: COLUMNS(places), empty: "No lane." });
  const chart = new Chart({ label: "Records per second while this page is open", height: 170, leastSeconds: 60, signal });
  const span = new Span({ minutes: Number(query.get("window")) || HOUR_MINUTES, changed: () => {
    draw();
    field.ask();
  } });
  const field = new Field({ name, span, chosen: query.get("field"), signal });
  timeline.attach(span);
  const back = el("button", { type: "button", disabled: true, onclick: () => turn(at.before.pop() ?? null) }, "Earlier lanes");
  const on = el("button", { type: "button", disabled: true, onclick: () => {
    at.before.push(at.after);
    turn(at.next);
  } }, "Later lanes");
  const more = el("button", { type: "button", hidden: true, onclick: () => {
    at.drawn += 4 * DRAWN;
    draw();
    rounds.poke();
  } });
  main.replaceChildren(...page(name,
    el("p", { class: "links" }, el("a", { href: `#/records/${encodeURIComponent(name)}` }, "Records as they come"), " ",
      el("a", { href: `#/topics?stream=${encodeURIComponent(name)}` }, "Topics")),
    figures, troubles, reasons,
    el("h2", { id: "completeness" }, "Completeness over time"),
    span.element, timeline.element, verdict, unfound, el("div", { class: "filters" }, more, back, on),
    el("details", {}, el("summary", {}, "The same as a table"), table.element),
    field.element, el("h2", {}, "Rate"), el("p", { class: "advice" }, "Measured while this page is open."), chart.element));

  const draw = () => {
    if (!at.answer) return;
    const moment = millis(at.answer.complete_up_to);
    timeline.show({ lanes: at.lanes.slice(0, at.drawn), places, from: span.from, to: span.to, moment });
    more.hidden = at.lanes.length <= at.drawn;
    more.textContent = `Show more of ${count(at.lanes.length)} lanes`;
    verdict.textContent = judged(moment, span);
    table.show(at.lanes);
  };
  const sizes = new ResizeObserver(draw);
  sizes.observe(main);
  signal.addEventListener("abort", () => sizes.disconnect());

  const rounds = new api.Rounds(async () => {
    try {
      const [facts, answer] = await Promise.all([
        api.get(api.ofStream(name), {}, signal),
        api.get(api.ofStream(name, "/completeness"), { limit: LANES, after: at.after }, signal)]);
      delete main.dataset.absent;
      Object.assign(at, { answer, facts, lanes: byTrouble(answer.lanes, answer.held_back_by, Date.now()), next: answer.next_after });
      back.disabled = !at.before.length;
      on.disabled = !at.next;
      back.hidden = on.hidden = !at.next && !at.before.length;
      for (const lane of answer.lanes) {
        lane.stream = name;
        places.learn(lane);
      }
      troubles.replaceChildren(...(answer.missing_shards ? [notice("warn",
        `${answer.missing_shards.length} shards cannot be read.`, "What they hold is not known.")] : []));
      show(facts, answer);
      draw();
      searched.poke();
    } catch (error) {
      if (signal.aborted) return;
      if (error.status === 404) absent(main, troubles, `There is no stream ${name}.`, el("a", { href: "#/streams" }, "All streams"));
      else troubles.replaceChildren(notice("bad", error.message, error.advice));
    }
  }, { leastMs: 2000, restMs: 5000, signal });
  const searched = new api.Rounds(async () => {
    const drawn = at.lanes.slice(0, at.drawn);
    try {
      if (await findBegins(at, drawn, span.from, signal)) draw();
      if (at.facts && await findGaps(at, at.facts, drawn, signal)) draw();
      unfound.textContent = "";
    } catch (error) {
      if (!signal.aborted) unfound.textContent = `Where lanes begin and gaps lie is not known yet: ${error.message}.`;
    }
  }, { ...SEARCHES, signal });
  // Apart: an answer about many records takes long, and is followed by a long pause.
  const charted = new api.Rounds(() => (span.end === null ? field.update() : null), { leastMs: 5000, restMs: 15000, signal });
  onChange((event) => {
    if (!event.streams.includes(name)) return;
    rounds.poke();
    charted.poke();
  });

  function turn(after) {
    Object.assign(at, { after, drawn: DRAWN });
    rounds.poke();
  }

  function show(facts, answer) {
    const now = Date.now();
    const moment = millis(facts.complete_up_to);
    const { mark, told: reasonsTold } = standing(answer.held_back_by);
    const told = [["Records", count(facts.records)], ["Rate", rate(facts.records_per_second)],
      ["Complete up to", moment === null ? "unknown" : ago(moment, now), moment === null && mark === "good" ? "" : mark, moment && `${utc(moment)} UTC`],
      ["Edges", count(facts.edges)], ["Lanes", count(facts.lanes)],
      ...(facts.table_rows === null ? [] : [["Rows in the table", count(facts.table_rows)]])];
    figures.replaceChildren(...told.map(([title, value, kind, hint]) =>
      el("div", { class: kind || null, title: hint || null }, el("dt", {}, title), el("dd", {}, value))));
    const more = answer.held_back_by_more ? [el("li", {}, `and ${count(answer.held_back_by_more)} more`)] : [];
    const isCalm = mark === "good";
    reasons.replaceChildren(...(reasonsTold.length ? [el("section", { class: `notice ${isCalm ? "" : mark}`, "aria-label": "What holds it back" },
      el("strong", {}, isCalm ? "It moves on. It waits for" : "Held back by"),
      el("ul", { class: "plain" }, grouped(reasonsTold).map((group) => heldBack(group, answer.tenant, isCalm)), more))] : []));
    const last = rates.at(-1);
    if (!last || now - last.now >= 1900) {
      const per = last && facts.records >= last.records ? (facts.records - last.records) / ((now - last.now) / 1000) : null;
      rates.push({ now, records: facts.records, per });
      if (rates.length > RATES_KEPT) rates.shift();
      const drawn = rates.filter((each) => each.per !== null);
      if (drawn.length) chart.show(["records/s"], [drawn.map((each) => each.now / 1000), drawn.map((each) => each.per)]);
    }
  }
}

/** Reasons that read the same, together: a network that fails holds back all of its edges. */
function grouped(reasons) {
  const groups = new Map();
  for (const each of reasons) {
    const key = `${each.reason} ${each.why}`;
    groups.set(key, [...(groups.get(key) ?? []), each]);
  }
  return [...groups.values()].slice(0, GROUPS_SHOWN);
}

function heldBack(group, tenant, isCalm) {
  const [first] = group;
  const names = group.slice(0, EDGES_NAMED).flatMap((each, at) => [at ? ", " : "", each.edge ? edgeLink({ tenant, edge: each.edge }) : each.reason.replaceAll("_", " ")]);
  const more = group.length > EDGES_NAMED ? ` and ${count(group.length - EDGES_NAMED)} more` : "";
  return el("li", {}, el("strong", {}, names, more), ": ", prose(first.why), ". ", isCalm ? "" : el("span", { class: "advice" }, prose(sentence(first.what_to_do))));
}

/** Whether all of a time is here: the moment is that of all lanes, also of those on other pages. */
function judged(moment, { from, to }) {
  if (moment === null) return "It is not known whether this time is complete.";
  if (moment >= to) return "This time is complete: each record of it is here, or under a gap with its reason.";
  return moment > from ? `This time is complete up to ${utc(moment)} UTC. Later records may still come.` : "Records of all of this time may still come.";
}

/** Return the first records of a lane's edge from a place on: its time, or an offset of its shard. */
async function firstOf({ name, tenant, places }, lane, place, signal) {
  const answer = await api.get(api.ofStream(name, "/records"), { tenant, shard: lane.shard, edge: lane.edge, limit: FIRST_OF, ...place }, signal);
  const mine = answer.records.find((each) => each.log === lane.log);
  if (mine) places.add(laneKey(lane), mine.seq, millis(mine.time));
  return { mine, next: answer.next_offset[lane.shard] };
}

/** Learn between which records gaps are: for each, the last record before it and the first one behind it. Once for each. */
export async function findGaps(at, facts, lanes, signal) {
  const wanted = lanes.flatMap((lane) => lane.gaps.toReversed().map((gap) => ({ lane, gap, key: gapKey(lane, gap) })))
    .filter(({ key }) => !at.places.sampled.has(key)).slice(0, CLOSER_MAX);
  for (const { lane, gap, key } of wanted) {
    let [low, high] = [0, facts.next_offset[lane.shard] || 0];
    for (let step = 0; low < high && step < STEPS; step += 1) {
      const middle = Math.floor((low + high) / 2);
      let found;
      try {
        found = await firstOf(at, lane, { offset: middle }, signal);
      } catch (error) {
        if (error.status !== GONE) throw error;
        low = middle + 1; // the log no longer has it, and there is no table
        continue;
      }
      const { mine, next } = found;
      if (mine && mine.seq < gap.first) low = Math.max(mine.offset, middle) + 1;
      else if (mine || next >= high) high = middle;
      else low = Math.max(next ?? 0, middle + 1); // none of it in all that one request may read
    }
    at.places.sampled.add(key);
  }
  return wanted.length > 0;
}

/** Learn which lanes began within a time that ends now, and when. Lanes that are older are not asked for again. */
export async function findBegins(at, lanes, from, signal) {
  const { begun } = at.places;
  const asked = at.asked ??= new Map();
  const wanted = lanes.filter((lane) => typeof begun.get(laneKey(lane)) !== "number" && from < (asked.get(laneKey(lane)) ?? Infinity));
  if (!wanted.length) return false;
  const since = new Date(Math.max(0, from)).toISOString();
  const { records } = wanted.length <= ONE_BY_ONE ? { records: [] }
    : await api.get(api.ofStream(at.name, "/records"), { tenant: at.tenant, since, limit: BEGINS_AT_ONCE }, signal);
  const first = new Map();
  for (const each of records) {
    const key = laneKey(each);
    if (each.seq <= (first.get(key)?.seq ?? Infinity)) first.set(key, each);
  }
  for (const lane of wanted) {
    const key = laneKey(lane);
    const mine = first.get(key) ?? (await firstOf(at, lane, { since }, signal)).mine;
    asked.set(key, from);
    begun.set(key, mine && mine.seq <= firstSeq(lane) ? millis(mine.time) : null);
  }
  return true;
}

/** What asks something of a person is first: lanes that hold the stream back, then those that lack records, then those with
 * gaps; in each kind, the one that is complete up to the earliest moment. */
function byTrouble(lanes, reasons, now) {
  const held = new Set(reasons.filter((each) => each.severity !== "info").map((each) => `${each.edge}/${each.log}`));
  const rank = (lane) => {
    if (lane.retired) return 9;
    if (held.has(`${lane.edge}/${lane.log}`)) return 0;
    if (lane.holes.length || now - (millis(lane.newest_mark?.time) ?? 0) > SILENT_MS) return 1;
    return lane.open_gap || lane.gaps.length ? 2 : 3;
  };
  const ranked = lanes.map((lane, at) => [rank(lane), millis(lane.complete_up_to) ?? 0, at, lane]);
  ranked.sort((a, b) => a[0] - b[0] || (a[0] < 2 ? a[1] - b[1] : 0) || a[2] - b[2]);
  return ranked.map(([, , , lane]) => lane);
}

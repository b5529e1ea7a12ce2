// One stream: its figures, its completeness over time, what holds it back, and its rate.

import * as api from "./api.js";
import { Chart } from "./charts.js";
import { absent, ago, badge, count, el, millis, notice, page, prose, rate, utc } from "./dom.js";
import { Field } from "./field.js";
import { Span } from "./span.js";
import { standing } from "./streams.js";
import { Table } from "./table.js";
import { laneKey, Places, segments, Timeline } from "./timeline.js";

const LANES = 50;
const HOUR_MINUTES = 60;
const RATES_KEPT = 720;
const SAMPLES = 12;
const SAMPLED_SHARDS_MAX = 4;
const CLOSER_MAX = 5;
const STEPS = 10;

const COLUMNS = (places) => [
  { key: "edge", title: "Edge", value: (l) => l.edge },
  { key: "log", title: "Log", kind: "short", value: (l) => l.log, cell: (l) => el("code", {}, l.log) },
  { key: "complete", title: "Complete up to (UTC)", kind: "short", value: (l) => millis(l.complete_up_to),
    cell: (l) => utc(millis(l.complete_up_to)) },
  { key: "pending", title: "To come", kind: "number", value: (l) => l.holes.reduce((sum, h) => sum + h.end - h.first, 0),
    cell: (l) => count(l.holes.reduce((sum, h) => sum + h.end - h.first, 0)) },
  { key: "gaps", title: "Never comes", kind: "wide", value: (l) => -l.gaps.length, cell: (l) => {
    const told = segments(l, places, Date.now()).filter((each) => each.kind === "gap");
    return told.length ? el("ul", { class: "plain" }, told.map((each) => el("li", {}, badge("bad", each.reason), ` ${each.text}`))) : "";
  } },
];

export function stream({ main, signal, onChange, rest: [name], query }) {
  const at = { after: null, before: [], lanes: [], next: null, answer: null, sampled: new Set() };
  const places = new Places();
  const rates = [];
  const figures = el("dl", { class: "figures", "aria-label": "Summary" });
  const troubles = el("div");
  const reasons = el("div");
  const timeline = new Timeline();
  const verdict = el("p", { class: "advice verdict" });
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
  main.replaceChildren(...page(name,
    el("p", { class: "links" }, el("a", { href: `#/records/${encodeURIComponent(name)}` }, "Records as they come"), " ",
      el("a", { href: `#/topics?stream=${encodeURIComponent(name)}` }, "Topics")),
    figures, troubles, reasons,
    el("h2", { id: "completeness" }, "Completeness over time"),
    span.element, timeline.element, verdict, el("div", { class: "filters" }, back, on),
    el("details", {}, el("summary", {}, "The same as a table"), table.element),
    field.element, el("h2", {}, "Rate"), el("p", { class: "advice" }, "Measured while this page is open."), chart.element));

  const draw = () => {
    if (!at.answer) return;
    const moment = millis(at.answer.complete_up_to);
    timeline.show({ lanes: at.lanes, places, from: span.from, to: span.to, moment });
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
      Object.assign(at, { answer, lanes: answer.lanes, next: answer.next_after });
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
      if (await findGaps({ name, places, sampled: at.sampled }, facts, answer.lanes, signal)) draw();
    } catch (error) {
      if (signal.aborted) return;
      if (error.status === 404) absent(main, troubles, `There is no stream ${name}.`, el("a", { href: "#/streams" }, "All streams"));
      else troubles.replaceChildren(notice("bad", error.message, error.advice));
    }
  }, { leastMs: 2000, restMs: 5000, signal });
  // Apart: an answer about many records takes long, and is followed by a long pause.
  const charted = new api.Rounds(() => (span.end === null ? field.update() : null), { leastMs: 5000, restMs: 15000, signal });
  onChange((event) => {
    if (!event.streams.includes(name)) return;
    rounds.poke();
    charted.poke();
  });

  function turn(after) {
    at.after = after;
    rounds.poke();
  }

  function show(facts, answer) {
    const now = Date.now();
    const moment = millis(facts.complete_up_to);
    const { mark, told: reasonsTold } = standing(answer.held_back_by);
    const told = [["Records", count(facts.records)], ["Rate", rate(facts.records_per_second)],
      ["Complete up to", moment === null ? "unknown" : ago(moment, now), moment === null && mark === "good" ? "" : mark, moment && `${utc(moment)} UTC`],
      ["Edges", count(facts.edges)], ["Lanes", count(facts.lanes)],
      ["Rows in the table", count(facts.table_rows)]];
    figures.replaceChildren(...told.map(([title, value, kind, hint]) =>
      el("div", { class: kind || null, title: hint || null }, el("dt", {}, title), el("dd", {}, value))));
    const more = answer.held_back_by_more ? [el("li", {}, `and ${count(answer.held_back_by_more)} more`)] : [];
    const isCalm = mark === "good";
    reasons.replaceChildren(...(reasonsTold.length ? [el("section", { class: `notice ${isCalm ? "" : mark}`, "aria-label": "What holds it back" },
      el("strong", {}, isCalm ? "It moves on. It waits for" : "Held back by"), el("ul", { class: "plain" }, reasonsTold.slice(0, 5).map((each) =>
        el("li", {}, el("strong", {}, each.edge || each.reason.replaceAll("_", " ")), ": ", prose(each.why), ". ", isCalm ? "" : prose(each.what_to_do))),
      reasonsTold.length > 5 ? el("li", {}, `and ${count(reasonsTold.length - 5)} more of these`) : null, more))] : []));
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

/** Whether all of a time is here: the moment is that of all lanes, also of those on other pages. */
function judged(moment, { from, to }) {
  if (moment === null) return "It is not known whether this time is complete.";
  if (moment >= to) return "This time is complete: each record of it is here, or under a gap with its reason.";
  return moment > from ? `This time is complete up to ${utc(moment)} UTC. Later records may still come.` : "Records of all of this time may still come.";
}

/** Learn when the numbers around gaps were taken in: from records here and there, and then ever closer to the gap.
 * Once for each lane. */
export async function findGaps({ name, tenant, places, sampled }, facts, lanes, signal) {
  const wanted = lanes.filter((lane) => lane.gaps.length && !sampled.has(laneKey(lane)));
  wanted.forEach((lane) => sampled.add(laneKey(lane)));
  const known = new Map();
  const read = async (shard, offset) => {
    const answer = await api.get(api.ofStream(name, "/records"), { ...(tenant ? { tenant } : {}), shard, offset, limit: 20 }, signal);
    for (const each of answer.records) {
      const key = laneKey(each);
      places.add(key, each.seq, millis(each.time));
      if (!known.has(key)) known.set(key, []);
      known.get(key).push(each);
    }
  };
  for (const shard of [...new Set(wanted.map((lane) => lane.shard))].slice(0, SAMPLED_SHARDS_MAX)) {
    const end = facts.next_offset[shard] || 0;
    for (let part = 0; part <= SAMPLES && end; part += 1) {
      await read(shard, Math.min(end - 1, Math.floor((end * part) / SAMPLES)));
    }
  }
  for (const { lane, gap } of wanted.flatMap((each) => each.gaps.map((gap) => ({ lane: each, gap }))).slice(0, CLOSER_MAX)) {
    for (let step = 0; step < STEPS; step += 1) {
      const records = known.get(laneKey(lane)) || [];
      const low = Math.max(...records.filter((each) => each.seq < gap.first).map((each) => each.offset));
      const high = Math.min(...records.filter((each) => each.seq >= gap.end).map((each) => each.offset));
      if (!(Number.isFinite(low) && Number.isFinite(high) && high > low + 1)) break;
      await read(lane.shard, Math.floor((low + high) / 2));
    }
  }
  return wanted.length > 0;
}

// Completeness over time: for each lane what is here, what is still to come, and what never comes, with the reason.

import { count, el, millis, svg, utc } from "./dom.js";

const HEIGHT = 26;
const DAY_MS = 86_400_000;
const STEPS_MS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1200, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800,
  604800, 1209600].map((seconds) => seconds * 1000);
const NAME = 180;
const NARROW = 560;
const KINDS = {
  held: "here", pending: "to come", gap: "never comes", silent: "not heard of since", unknown: "not said",
};

/** A moment of the axis: no finer than its steps, and a day by its date. */
function tick(at, step) {
  const text = new Date(at).toISOString();
  if (step >= DAY_MS || at % DAY_MS === 0) return text.slice(5, 10);
  return step >= 60_000 ? text.slice(11, 16) : step >= 1000 ? text.slice(11, 19) : text.slice(14, 21);
}

export const gapKey = (lane, gap) => `${laneKey(lane)} ${gap.first}`;
export const laneKey = (lane) => `${lane.edge}/${lane.log}/${lane.stream}`;

/** Moments that are known of a lane's numbers: below `seq` everything is from before `time`, and the rest from after. */
export class Places {
  constructor() {
    this.of = new Map();
    /** Lane -> when it began, in ms; null where it is older than any time that was asked for. */
    this.begun = new Map();
    /** Gaps whose neighbours were searched: one of which nothing is known would be drawn as wide as its lane. */
    this.sampled = new Set();
  }

  add(key, seq, time) {
    if (time === null || seq === null || seq === undefined) return;
    const points = this.of.get(key) || new Map();
    points.set(seq, time);
    this.of.set(key, points);
  }

  learn(lane) {
    const key = laneKey(lane);
    for (const mark of [lane.newest_mark, lane.last_word]) if (mark) this.add(key, mark.seq, millis(mark.time));
    if (lane.complete_up_to) this.add(key, lane.complete_below_seq, millis(lane.complete_up_to));
  }

  /** Return the moments between which numbers [first, end) were taken in; null where that is not known. */
  between(key, first, end) {
    let after = null;
    let before = null;
    for (const [seq, time] of this.of.get(key) || []) {
      if (seq <= first && (after === null || time > after)) after = time;
      if (seq >= end && (before === null || time < before)) before = time;
    }
    return [after, before];
  }
}

/** Return the first number that a lane has, or can have. */
export const firstSeq = (lane) => lane.gaps.reduce((seq, gap) => (gap.first <= seq ? Math.max(seq, gap.end) : seq), 0);

/** Return what to draw of a lane: {kind, from, to, text}, in the order of drawing. A null `from` is before the window. */
export function segments(lane, places, now) {
  const upTo = millis(lane.complete_up_to);
  const newest = lane.newest_mark ? millis(lane.newest_mark.time) : null;
  const begun = places.begun.get(laneKey(lane)) ?? null;
  const found = [];
  if (upTo === null) {
    found.push({ kind: "unknown", from: null, to: now, text: "The edge has not said up to when it is complete." });
  } else {
    const since = begun === null ? "" : `Its first record is of ${utc(begun)} UTC. `;
    found.push({ kind: "held", from: begun, to: upTo, text: `${since}Complete up to ${utc(upTo)} UTC` });
  }
  const missing = lane.holes.reduce((sum, hole) => sum + hole.end - hole.first, 0);
  if (newest !== null && (upTo === null || newest > upTo)) {
    const text = missing ? `${count(missing)} records are to come` : "Not proven complete yet";
    found.push({ kind: "pending", from: upTo, to: newest, text });
  }
  const last = Math.max(newest ?? 0, upTo ?? 0);
  if (last && now - last > 1000 && !lane.retired) {
    found.push({ kind: "silent", from: last, to: now, text: `Said nothing later than ${utc(last)} UTC` });
  }
  for (const gap of lane.gaps) {
    const [after, before] = places.between(laneKey(lane), gap.first, gap.end);
    const records = gap.end - gap.first;
    const where = after === null ? `before ${utc(before)}` : before === null ? `after ${utc(after)}`
      : `between ${utc(after)} and ${utc(before)}`;
    const kind = (after ?? begun) === null ? "gap loose" : "gap";
    found.push({ kind, reason: gap.reason, isSearched: places.sampled.has(gapKey(lane, gap)), from: after ?? begun, to: before ?? upTo ?? now, records,
      text: `${count(records)} records never come (${gap.reason}), taken in ${where} UTC` });
  }
  if (lane.open_gap) {
    found.push({ kind: "gap", reason: "lost", from: millis(lane.open_gap.since), to: millis(lane.open_gap.until), records: null,
      text: `An unknown number of records never comes: ${lane.open_gap.why}` });
  }
  return found;
}

/** The drawing: a bar for each lane under one axis, and the moment of the stream as a line through all. */
export class Timeline {
  /** named(lane): what its bar is called. */
  constructor(named = (lane) => lane.edge) {
    this.named = named;
    this.axis = svg("svg", { class: "axis", "aria-hidden": "true" });
    this.rows = el("ol", { class: "lanes" });
    this.legend = el("ul", { class: "legend", "aria-label": "Colours" },
      Object.entries(KINDS).map(([kind, text]) => el("li", { class: kind }, text)), el("li", { class: "moment" }, "complete up to"));
    this.element = el("figure", { class: "timeline", tabindex: "0",
      "aria-label": "Completeness over time, lane by lane. Plus and minus zoom, left and right move, End goes to now." },
    this.legend, this.axis, this.rows);
  }

  /** Let a span be chosen on the drawing. */
  attach(span) {
    span.attach(this.element, this.rows, () => {
      const box = this.rows.getBoundingClientRect();
      const width = this.width();
      return { left: box.right - width, width };
    });
  }

  width() {
    return Math.max(120, this.rows.clientWidth - (this.rows.clientWidth > NARROW ? NAME : 0));
  }

  show({ lanes, places, from, to, moment }) {
    const now = Date.now();
    const width = this.width();
    const x = (time) => Math.max(0, Math.min(width, ((time - from) / (to - from)) * width));
    this.ticks(width, x, from, to, moment, to >= now - 1000);
    this.rows.replaceChildren(...lanes.map((lane) => this.row(lane, segments(lane, places, now), width, x, [from, to], moment)));
  }

  row(lane, found, width, x, [from, to], moment) {
    const texts = found.filter((each) => each.kind !== "held" || found.length === 1).map((each) => each.text);
    const bars = found.map((each) => {
      if (each.isSearched === false) return null;
      const left = each.from === null ? 0 : x(each.from);
      const right = each.to === null ? width : x(each.to);
      if ((each.to !== null && each.to < from) || (each.from !== null && each.from > to)) return null;
      const least = each.reason ? 5 : 0;
      const wide = Math.max(least, right - left);
      const at = Math.min(left, width - wide);
      return svg("rect", { class: each.kind, x: at, y: 5, width: wide, height: HEIGHT - 10, rx: 2 },
        svg("title", {}, each.text));
    });
    const line = moment === null || moment < from || moment > to ? null
      : svg("line", { class: "moment", x1: x(moment), x2: x(moment), y1: 0, y2: HEIGHT });
    const name = el("span", { class: "lane" }, this.named(lane), el("small", {}, lane.retired ? "retired" : lane.log.slice(-4)));
    const label = `${this.named(lane)}, log ${lane.log}: ${found.map((each) => each.text).join("; ")}`;
    return el("li", { class: lane.retired ? "retired" : null }, name,
      svg("svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": label }, ...bars, line || ""),
      texts.length && found.some((each) => each.reason) ? el("span", { class: "hidden" }, texts.join("; ")) : null);
  }

  ticks(width, x, from, to, moment, isNow) {
    const wanted = Math.max(2, Math.floor(width / 110));
    const step = STEPS_MS.find((each) => (to - from) / each <= wanted) || STEPS_MS.at(-1);
    const marks = [];
    const isRoom = (at) => x(at) > 22 && x(at) < width - (isNow ? 52 : 22);
    for (let at = Math.ceil(from / step) * step; at < to; at += step) {
      if (isRoom(at)) marks.push(svg("text", { x: x(at), y: 12, "text-anchor": "middle" }, tick(at, step)));
      marks.push(svg("line", { x1: x(at), x2: x(at), y1: 16, y2: 20 }));
    }
    if (isNow) marks.push(svg("text", { x: width, y: 12, "text-anchor": "end" }, "now"));
    if (moment !== null && moment >= from && moment <= to) {
      marks.push(svg("path", { class: "moment", d: `M${x(moment) - 5} 14h10l-5 8z` }));
    }
    this.axis.setAttribute("width", width);
    this.axis.setAttribute("height", 22);
    this.axis.replaceChildren(...marks);
    this.axis.parentElement.dataset.wide = this.rows.clientWidth > NARROW ? "yes" : "no";
  }
}

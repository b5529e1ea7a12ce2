// A number in a stream's payloads over time. Missing records are gaps in its line; time that is not complete yet is shaded.

import * as api from "./api.js";
import { aligned, Chart, SERIES_MAX } from "./charts.js";
import { count, el, labelled, millis, notice } from "./dom.js";

const SAMPLE = 50;
const SAMPLED_SHARDS_MAX = 4;
const FIELDS_MAX = 60;
const DEPTH_MAX = 4;
const POINTS = 400;
const ROWS_MAX = 10_000;
const ITSELF = "value";
const [NONE, NUMBERS] = ["none", "numbers"];

/** Add the numbers of a value to `found`, by their path. */
export function numbers(value, path, found, depth = 0) {
  if (typeof value === "number") found[path || ITSELF] = value;
  else if (value && typeof value === "object" && !Array.isArray(value) && depth < DEPTH_MAX) {
    for (const [name, each] of Object.entries(value)) numbers(each, path ? `${path}.${name}` : name, found, depth + 1);
  }
  return found;
}

/** Return the payload of a record: a value of JSON, text, or null for bytes. */
export function decoded(record) {
  if (record.payload === undefined) return null;
  try {
    return JSON.parse(record.payload);
  } catch {
    return record.payload;
  }
}

/** The chart of a stream's field over a span, and what chooses the field. `update` asks for what it shows. */
export class Field {
  constructor({ name, span, chosen, signal }) {
    Object.assign(this, { name, span, signal, wanted: chosen, kind: null, asked: 0 });
    this.list = el("select", { id: "field", onchange: () => this.ask() });
    this.key = el("input", { type: "search", id: "field-key", placeholder: "#", maxlength: 512, spellcheck: "false",
      title: "A filter of MQTT: plant/+/temperature, plant/#", onchange: () => this.ask() });
    this.chart = new Chart({ label: `A field of ${name} over time`, height: 240, signal, stretch: (from, to) => span.show(from * 1000, to * 1000) });
    this.troubles = el("div");
    this.said = el("p", { class: "advice" });
    this.records = el("a", {}, "Records of this time");
    this.element = el("section", { "aria-label": "A field over time", hidden: true }, el("h2", {}, "A field over time"),
      el("div", { class: "filters" }, labelled("Field", this.list), labelled("Topics", this.key),
        this.records), this.troubles, this.chart.element, this.said);
  }

  /** Learn what numbers the newest records have. */
  async learn() {
    if (this.kind !== null) return;
    const facts = await api.get(api.ofStream(this.name), {}, this.signal);
    const names = new Set();
    const shards = Object.entries(facts.next_offset).filter(([, end]) => end).slice(0, SAMPLED_SHARDS_MAX);
    for (const [shard, end] of shards) {
      const offset = Math.max(0, end - SAMPLE);
      const { records } = await api.get(api.ofStream(this.name, "/records"), { shard, offset, limit: SAMPLE }, this.signal);
      for (const each of records) Object.keys(numbers(decoded(each), "", {})).forEach((path) => names.add(path));
    }
    if (!names.size) {
      this.kind = shards.length ? NONE : null;
      return;
    }
    this.kind = NUMBERS;
    this.list.replaceChildren(...[...names].sort().slice(0, FIELDS_MAX).map((each) =>
      el("option", { value: each, selected: each === this.wanted }, each)));
    this.element.hidden = false;
  }

  async update() {
    try {
      await this.learn();
    } catch {
      return; // the rest of the page says why
    }
    await this.ask();
  }

  async ask() {
    if (this.element.hidden) return;
    const number = (this.asked += 1);
    const { from, to, end } = this.span;
    const time = (ms) => new Date(ms).toISOString();
    const step = Math.max(1, Math.round((to - from) / POINTS));
    this.records.href = `#/records/${encodeURIComponent(this.name)}?${new URLSearchParams({
      since: time(from), ...(end === null ? {} : { until: time(to) }), ...(this.key.value ? { topic: this.key.value } : {}) })}`;
    try {
      const answer = await api.get(api.ofStream(this.name, "/series"), {
        since: time(from), until: end === null ? null : time(to), fields: this.list.value === ITSELF ? null : this.list.value,
        key: this.key.value, step: step < 1000 ? `${step}ms` : `${Math.round(step / 1000)}s`, value: "mean", limit: ROWS_MAX }, this.signal);
      if (number !== this.asked) return; // another field or time was chosen meanwhile
      this.troubles.replaceChildren();
      this.draw(answer, from, to);
    } catch (error) {
      if (!this.signal.aborted && number === this.asked) this.troubles.replaceChildren(notice("bad", error.message, error.advice));
    }
  }

  draw(answer, from, to) {
    const lines = new Map();
    for (const { edge, key, time, value } of answer.rows) {
      const name = `${edge} ${key}`;
      if (!lines.has(name)) lines.set(name, []);
      lines.get(name).push([millis(time), value]);
    }
    const shown = [...lines].slice(0, SERIES_MAX).map(([name, points]) => ({ name, points }));
    const complete = millis(answer.complete_up_to);
    const gaps = shown.reduce((sum, { points }) => sum + points.filter(([, value]) => value === null).length, 0);
    const unsure = complete === null ? from / 1000 : complete / 1000;
    this.chart.show(shown.map(({ name }) => name), shown.length ? aligned(shown) : [[from / 1000, to / 1000]], { span: [from / 1000, to / 1000], unsure });
    const told = [
      shown.length ? null : "No number of this field in this time.",
      gaps ? `${count(gaps)} ${gaps === 1 ? "gap" : "gaps"}: records are missing there.` : null,
      unsure < to / 1000 ? "Shaded: records of this time may still come." : "This time is complete.",
      lines.size > SERIES_MAX ? `${count(lines.size - SERIES_MAX)} more lines are not drawn: choose topics.` : null,
      answer.is_whole ? null : "The answer met a bound, and later values may be left out: zoom in, or choose topics.",
    ];
    this.said.textContent = told.filter(Boolean).join(" ");
  }
}

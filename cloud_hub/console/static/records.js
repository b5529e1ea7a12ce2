// Records of a stream: the newest as they come, or from a moment on; decoded, and one field over time.

import * as api from "./api.js";
import { aligned, Chart, SERIES_MAX } from "./charts.js";
import { absent, count, duration, el, labelled, millis, notice, page, utc } from "./dom.js";
import { decoded, numbers } from "./field.js";
import { Table } from "./table.js";
import { laneKey } from "./timeline.js";
import { traceLink } from "./trace.js";

const KEPT = 5000;
const TAIL = 1000;
const PAGE = 1000;
const REQUESTS_MAX = 20;
const FIELDS_MAX = 60;
const SHOWN = 160;
/** Longest pause behind a slow answer: what is called live must not stand for minutes where a hub is busy. */
const LIVE_MS = 15_000;

function payload(record) {
  if (record.payload === undefined) return el("code", {}, `base64: ${record.payload_base64.slice(0, SHOWN)}`);
  if (record.payload.length <= SHOWN) return el("code", {}, record.payload);
  const whole = typeof record.value === "object" ? JSON.stringify(record.value, null, 2) : record.payload;
  return el("details", {}, el("summary", {}, el("code", {}, `${record.payload.slice(0, SHOWN)}…`)), el("pre", { class: "code" }, whole));
}

/** Whether a topic has a text, or matches a filter of MQTT. */
function isOfTopic(topic, wanted) {
  if (!/[+#]/.test(wanted)) return topic.toLowerCase().includes(wanted.toLowerCase());
  const levels = topic.split("/");
  const filter = wanted.split("/");
  return filter.every((each, at) => each === "#" || (at < levels.length && (each === "+" || each === levels[at])))
    && (filter.at(-1) === "#" || filter.length === levels.length);
}

const COLUMNS = [
  { key: "time", title: "Time (UTC)", value: (r) => r.at, cell: (r) => el("time", { datetime: r.time, title: r.time }, `${utc(r.at)}.${r.time.slice(20, 23)}`) },
  { key: "edge", title: "Edge", kind: "name", value: (r) => r.edge },
  { key: "key", title: "Topic", kind: "topic", value: (r) => r.key, cell: (r) => el("code", {}, r.key) },
  { key: "seq", title: "Number", kind: "number", value: (r) => r.seq, cell: (r) =>
    el("a", { href: traceLink(r.stream, { shard: r.shard, offset: r.offset }), title: "The way of this record" }, count(r.seq)) },
  { key: "payload", title: "Payload", kind: "wide", value: (r) => r.payload ?? r.payload_base64, cell: payload },
  { key: "received", title: "Received (UTC)", kind: "short", value: (r) => millis(r.received), cell: (r) => utc(millis(r.received)) },
];

export function records({ main, signal, onChange, rest: [name], query }) {
  let found = new Map();
  let ends = {};
  let work = new AbortController();
  let isFollowed = false;
  const said = el("p", { class: "count", role: "status" });
  const troubles = el("div");
  const choice = (id, placeholder) => el("input", { type: "search", id: `record-${id}`, placeholder, maxlength: 512, spellcheck: "false",
    value: query.get(id) || "", oninput: () => show() });
  const [edge, topic, text] = [choice("edge", "all"), choice("topic", "part, or filter as plant/#"), choice("text", "in the payload")];
  const moment = (id) => el("input", { type: "datetime-local", id: `record-${id}`, step: "1", value: (query.get(id) || "").slice(0, 19) });
  const [since, until] = [moment("since"), moment("until")];
  const field = el("select", { id: "field" });
  const gaps = el("ul", { class: "plain", "aria-label": "Gaps in the chart" });
  const chart = new Chart({ label: `A field of ${name} over time`, height: 260, signal });
  const plotted = el("section", { "aria-label": "Chart", hidden: true },
    el("div", { class: "filters" }, el("label", { for: "field" }, "Field"), field), chart.element, gaps);
  const table = new Table({ name: "Records", columns: COLUMNS, sort: { key: "time", down: true }, empty: "No record." });
  const tail = el("button", { type: "button", onclick: () => { since.value = until.value = ""; begin(); } }, "Newest, as they come");
  main.replaceChildren(...page(`Records of ${name}`,
    el("p", { class: "links" }, el("a", { href: `#/streams/${encodeURIComponent(name)}` }, "The stream and its completeness")),
    el("form", { class: "filters", role: "search", "aria-label": "Records", onsubmit: (event) => {
      event.preventDefault();
      begin();
    } }, labelled("Received since (UTC)", since), labelled("until", until), labelled("Edge", edge), labelled("Topic", topic),
    labelled("Text", text), el("button", { type: "submit", class: "primary" }, "Search"), tail),
    troubles, said, plotted, table.element));
  field.addEventListener("change", draw);
  signal.addEventListener("abort", () => work.abort());

  const ask = async (more) => {
    const answer = await api.get(api.ofStream(name, "/records"), more, work.signal);
    delete main.dataset.absent;
    return answer;
  };
  const fail = (error) => {
    if (error.name === "AbortError") return;
    if (error.status === 404) absent(main, troubles, `There is no stream ${name}.`, el("a", { href: "#/streams" }, "All streams"));
    else troubles.replaceChildren(notice("bad", error.message, error.advice));
  };
  const utcMillis = (input) => (input.value ? Date.parse(`${input.value.padEnd(19, ":00").slice(0, 19)}Z`) : null);
  const matches = (record) => {
    const end = utcMillis(until);
    return (!edge.value || record.edge.includes(edge.value.trim().toLowerCase())) && (!topic.value || isOfTopic(record.key, topic.value.trim()))
      && (!text.value || (record.payload ?? "").toLowerCase().includes(text.value.toLowerCase()))
      && (end === null || millis(record.received) < end + 1000);
  };

  function take(answer) {
    for (const each of answer.records) {
      each.at = millis(each.time);
      each.value = decoded(each);
      each.numbers = numbers(each.value, "", {});
      found.set(`${each.shard}/${each.offset}`, each);
    }
    const kept = since.value ? REQUESTS_MAX * PAGE : KEPT; // a search for a rare topic finds it among many others
    if (found.size > kept) found = new Map([...found].sort((a, b) => a[1].at - b[1].at).slice(-kept));
  }

  async function begin() {
    work.abort();
    work = new AbortController();
    found = new Map();
    ends = {};
    isFollowed = false;
    troubles.replaceChildren();
    said.textContent = "Reading ...";
    try {
      await (since.value ? search(new Date(utcMillis(since)).toISOString()) : newest());
    } catch (error) {
      said.textContent = "";
      fail(error);
    }
  }

  /** Read a shard from an offset on, and return where to continue. A request may end before it finds the offset: it then
   * names the chunk to search from. */
  async function readOn(shard, offset, limit) {
    let next = { offset };
    for (let left = REQUESTS_MAX; next && left > 0; left -= 1) {
      const answer = await ask({ shard, limit, ...next });
      take(answer);
      offset = answer.next_offset[shard] ?? offset;
      const chunk = answer.next_chunk[shard];
      next = answer.records.length || chunk === undefined ? null : { offset, chunk };
    }
    return offset;
  }

  async function newest() {
    const facts = await api.get(api.ofStream(name), {}, work.signal);
    const shards = Object.entries(facts.next_offset).filter(([, end]) => end);
    const each = Math.ceil(TAIL / Math.max(1, shards.length));
    await Promise.all(shards.map(async ([shard, end]) => {
      ends[shard] = await readOn(shard, Math.max(0, end - each), each);
    }));
    isFollowed = true;
    show();
    rounds.poke(); // what came meanwhile was not asked for
  }

  async function search(moment) {
    const facts = await api.get(api.ofStream(name), {}, work.signal);
    let left = REQUESTS_MAX;
    for (const shard of Object.keys(facts.next_offset)) {
      let next = { since: moment };
      while (next && left > 0 && [...found.values()].filter(matches).length < TAIL) {
        left -= 1;
        const answer = await ask({ shard, limit: PAGE, ...next });
        take(answer);
        const offset = answer.next_offset[shard];
        const chunk = answer.next_chunk[shard];
        const isPast = until.value && answer.records.length && millis(answer.records.at(-1).received) >= utcMillis(until) + 1000;
        next = !isPast && ((offset !== undefined && offset < facts.next_offset[shard]) || chunk !== undefined) ? { offset, chunk } : null;
        show();
      }
    }
    show(left === 0 ? " The search ended at its bound; search from a later moment to continue." : "");
  }

  function show(more = "") {
    const rows = [...found.values()].filter(matches);
    said.textContent = `${count(rows.length)} records${since.value ? "" : ", the newest"}${edge.value ? ` of ${edge.value}` : ""}.${more}`;
    table.show(rows);
    const names = [...new Set(rows.slice(-500).flatMap((row) => Object.keys(row.numbers)))].sort().slice(0, FIELDS_MAX);
    if (names.join() !== [...field.options].map((each) => each.value).join()) {
      const chosen = field.value || query.get("field");
      field.replaceChildren(...names.map((each) => el("option", { value: each, selected: each === chosen }, each)));
    }
    plotted.hidden = !names.length;
    draw();
  }

  /** A jump of a lane's numbers is a gap: the records in it are still to come, or never come. Records that the search
   * left out are none. */
  function draw() {
    const lines = new Map();
    const told = [];
    const lanes = Map.groupBy([...found.values()].sort((a, b) => a.seq - b.seq), laneKey);
    for (const rows of lanes.values()) {
      const mine = new Map();
      const gapsAt = [];
      rows.forEach((row, index) => {
        const before = rows[index - 1];
        if (before && row.seq > before.seq + 1) {
          gapsAt.push((before.at + row.at) / 2);
          if (matches(row) || matches(before)) {
            told.push(`${row.edge}: ${count(row.seq - before.seq - 1)} records are not here, of ${duration(row.at - before.at)} from ${utc(before.at)} UTC on`);
          }
        }
        if (!(field.value in row.numbers) || !matches(row)) return;
        if (!mine.has(row.key)) mine.set(row.key, []);
        mine.get(row.key).push([row.at, row.numbers[field.value]]);
      });
      for (const [key, points] of mine) {
        lines.set(`${laneKey(rows[0])} ${key}`, { name: `${rows[0].edge} ${key}`,
          points: [...points, ...gapsAt.map((at) => [at, null])].sort((a, b) => a[0] - b[0]) });
      }
    }
    const more = lines.size > SERIES_MAX ? [`${count(lines.size - SERIES_MAX)} more lines are not drawn: choose an edge or a topic`] : [];
    gaps.replaceChildren(...[...more, ...told.slice(0, 20)].map((each) => el("li", {}, each)));
    const drawn = [...lines.values()].slice(0, SERIES_MAX);
    if (drawn.length && !plotted.hidden) chart.show(drawn.map((each) => each.name), aligned(drawn));
  }

  /** The newest: the stream's end in each shard says where there are some. An event may leave the stream out, and an
   * edge of another shard may join it. */
  const rounds = new api.Rounds(async () => {
    const mine = work;
    if (!isFollowed || since.value) return;
    try {
      const facts = await api.get(api.ofStream(name), {}, mine.signal);
      for (const [shard, end] of Object.entries(facts.next_offset)) {
        const offset = Math.max(ends[shard] ?? 0, end - PAGE);
        if (offset >= end) continue;
        const next = await readOn(shard, offset, PAGE);
        if (mine !== work) return;
        ends[shard] = next;
        show();
      }
    } catch (error) {
      fail(error);
    }
  }, { leastMs: 1000, restMs: 30000, mostMs: LIVE_MS, signal });
  onChange((event) => (event.streams.includes(name) || event.streams_more) && rounds.poke());
  begin();
}

// The way of one record: device, edge, function, chunk of the log, and row of the table.

import * as api from "./api.js";
import { count, duration, el, millis, notice, page, svg, utc } from "./dom.js";

const REQUESTS_MAX = 40;
const SOURCE = /^([^ ,]+) (\d{1,20})(?:-(\d{1,20}))?(?:\/(\d{1,20}))?$/;
const SOURCES_MAX = 50;
const STANDINGS = {
  gone: ["warn", "It was here. Retention or an erasure has removed it since."], to_come: ["warn", "It is still to come."],
  unknown: ["warn", "The hub knows no such record."],
};

/** The address of a record's trace: by its place, or by lane and number. */
export const traceLink = (stream, by) => `#/trace/${encodeURIComponent(stream)}?${new URLSearchParams(by)}`;

const header = (record, name) => (record.headers || []).find(([each]) => each === name)?.[1];

/** Links to the records that an edge function made a record of. */
function inputs(record) {
  const parts = String(header(record, "weft.source") ?? "").split(", ", SOURCES_MAX + 1)
    .map((each) => each.match(SOURCE)).filter(Boolean);
  if (!parts.length) return null;
  return el("ul", { class: "plain" }, parts.slice(0, SOURCES_MAX).map(([, stream, first, last = first, used]) => {
    const ends = first === last ? [first] : [first, last];
    const of = used && first !== last ? `, ${used} of these numbers` : "";
    return el("li", {}, `${stream} `, ends.flatMap((seq, at) => [at ? " to " : "",
      el("a", { href: traceLink(stream, { edge: record.edge, log: record.log, seq }) }, seq)]), of);
  }), parts.length > SOURCES_MAX ? el("li", {}, "and more") : null);
}

function steps(answer, stream) {
  const { record, chunk, row } = answer;
  const text = record.payload ?? `base64: ${record.payload_base64}`;
  const time = (value) => el("time", { datetime: value }, `${utc(millis(value))} UTC`);
  const facts = (...pairs) => el("dl", { class: "facts" }, pairs.filter(([, value]) => value)
    .flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
  const made = inputs(record);
  return el("div", {}, way(record, row), el("ol", { class: "steps", "aria-label": "Way of the record" },
    el("li", {}, el("h2", {}, record.origin ? "Record" : "Message of a device"),
      facts(["Topic", el("code", {}, record.key)], ["Time", time(record.time)], ["Clock", record.clock],
        ["Sent again", record.resent ? "perhaps: the device said so" : null]), el("pre", { class: "code" }, text.slice(0, 4000))),
    record.origin ? el("li", {}, el("h2", {}, "Edge function"),
      facts(["Function and version", el("code", {}, record.origin)], ["Made of", made || "not said"])) : null,
    el("li", {}, el("h2", {}, "Edge"),
      facts(["Edge", record.edge], ["Log", el("code", {}, record.log)], ["Number", count(record.seq)])),
    el("li", {}, el("h2", {}, "Log of the hub"),
      facts(["Received", time(record.received)], ["Shard and offset", `${record.shard} / ${count(record.offset)}`],
        ["Object", chunk ? el("code", {}, chunk.key) : "The log no longer has it; the table does."])),
    el("li", {}, el("h2", {}, "Table"), row
      ? facts(["File", el("code", {}, row.file)], ["Row in the file", count(row.number)],
        ["In SQL", el("code", {}, `SELECT * FROM ${stream} WHERE _shard = ${record.shard} AND _offset = ${record.offset}`)])
      : el("p", {}, "No row up to a minute ago."))));
}

/** The way as a picture: who had the record when, and how long it took in between. */
function way(record, row) {
  const [taken, edgeTaken, received] = [record.time, record.edge_time, record.received].map(millis);
  const stops = [["Device", taken], edgeTaken === null ? null : ["Edge", edgeTaken], ["Hub", received], ["Table", null]].filter(Boolean);
  const x = (at) => 60 + (at * 600) / (stops.length - 1);
  const parts = stops.flatMap(([name, time], at) => {
    const before = stops[at - 1]?.[1] ?? null;
    const isHere = name !== "Table" || row;
    const under = time === null ? (row ? "a row" : "no row yet") : `${utc(time).slice(11)}.${String(time % 1000).padStart(3, "0")}`;
    return [
      at ? svg("line", { x1: x(at - 1), x2: x(at), y1: 34, y2: 34, class: isHere ? "" : "waits" }) : null,
      at && before !== null && time !== null ? svg("text", { x: (x(at - 1) + x(at)) / 2, y: 24, class: "took" }, took(time - before)) : null,
      svg("circle", { cx: x(at), cy: 34, r: 7, class: isHere ? "" : "waits" }),
      svg("text", { x: x(at), y: 58, class: "stop" }, name), svg("text", { x: x(at), y: 76, class: "took" }, under)];
  }).filter(Boolean);
  const label = stops.map(([name, time]) => `${name} ${time === null ? (row ? "has it as a row" : "has no row yet") : `${utc(time)} UTC`}`).join(", ");
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Picture of the way" },
    svg("svg", { class: "way", viewBox: "0 0 720 84", role: "img", "aria-label": label }, ...parts));
}

const took = (ms) => (Math.abs(ms) < 1000 ? `${ms} ms` : `${ms < 0 ? "-" : ""}${duration(ms)}`);

export function trace({ main, signal, rest: [name], query }) {
  const said = el("p", { class: "count", role: "status" }, "Reading ...");
  const found = el("div");
  main.replaceChildren(...page("Way of a record",
    el("p", { class: "links" }, el("a", { href: `#/records/${encodeURIComponent(name || "")}` }, `Records of ${name}`)), said, found));
  const asked = Object.fromEntries(["edge", "log", "seq", "shard", "offset"].map((each) => [each, query.get(each)]));
  (async () => {
    try {
      let more = {};
      for (let left = REQUESTS_MAX; ; left -= 1) {
        const answer = await api.get(api.ofStream(name, "/trace"), { ...asked, ...more }, signal);
        if (answer.next_shard === null || left <= 1) {
          said.textContent = answer.next_shard === null ? "" : "The search ended at its bound.";
          const [kind, text] = answer.gap ? ["bad", `It never comes: ${answer.gap.reason}.`] : STANDINGS[answer.standing] || [];
          found.replaceChildren(answer.record ? steps(answer, name) : notice(kind || "warn", text || "It was not found."));
          return;
        }
        more = { chunk: answer.next_chunk, from_shard: asked.offset === null ? answer.next_shard : null };
      }
    } catch (error) {
      said.textContent = "";
      if (!signal.aborted) found.replaceChildren(notice("bad", error.message, error.advice));
    }
  })();
}

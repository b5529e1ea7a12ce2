// What the fleet lacks for good: gaps that no record fills, of all edges.

import * as api from "./api.js";
import { sees } from "./acting.js";
import { count, el, millis, notice, page, utc } from "./dom.js";
import { edgeLink } from "./edge.js";
import { streamLink } from "./streams.js";
import { Table } from "./table.js";

const REASONS = {
  budget: "its log was full", expired: "too old", corruption: "damaged", operator: "given up by a person", absent: "not at its edge",
};
/** Gaps of which the page asks when their records were taken in: those with the most records. */
const TIMED = 100;
const AT_ONCE = 4;
const ASKED_MAX = 8;
const DRAWN_EACH_MS = 500;
const keyOf = (loss) => `${loss.tenant}/${loss.edge}/${loss.log}/${loss.stream}/${loss.first}`;
const unknown = (title) => el("span", { class: "unknown", title }, "unknown");

/** When its records were taken in: after the record before them, and before the one behind them. */
function taken({ from, to }) {
  if (from === undefined) return "";
  const [since, until] = [from, to].map((each) => (each === null ? null : utc(each)));
  if (since && until) return since.slice(0, 10) === until.slice(0, 10) ? `${since} to ${until.slice(11)}` : `${since} to ${until}`;
  return since ? `after ${since}` : until ? `before ${until}` : unknown("The records beside them are not here.");
}

const COLUMNS = [
  { key: "edge", title: "Edge", value: (l) => `${l.tenant}/${l.edge}`, cell: edgeLink },
  { key: "stream", title: "Stream", value: (l) => l.stream, cell: (l) => streamLink(l.stream) },
  { key: "records", title: "Records", kind: "number", value: (l) => -(l.records ?? Infinity), cell: (l) => (l.records === null ? unknown(l.why) : count(l.records)) },
  { key: "reason", title: "Why", value: (l) => l.reason, cell: (l) => l.reason },
  { key: "taken", title: "Taken in (UTC)", kind: "short", value: (l) => l.from ?? l.to ?? null, cell: taken },
  { key: "numbers", title: "Numbers", kind: "number", value: (l) => l.first, cell: (l) => `${l.first} to ${l.end ? l.end - 1 : "?"}` },
  { key: "log", title: "Log", kind: "short", value: (l) => l.log, cell: (l) => el("code", {}, l.log) },
  { key: "tenant", title: "Tenant", rare: "same", value: (l) => l.tenant },
];

/** Return the time of a record of the lane; null if it is not here. */
async function timeOf({ tenant, edge, log, stream }, seq, signal) {
  let place = {};
  for (let left = ASKED_MAX; seq >= 0 && left > 0; left -= 1) {
    const answer = await api.get(api.ofStream(stream, "/trace"), { tenant, edge, log, seq, ...place }, signal);
    if (answer.record || answer.next_shard === null) return millis(answer.record?.time);
    place = { from_shard: answer.next_shard, chunk: answer.next_chunk };
  }
  return null;
}

/** Losses that the hub has no numbers of, and those of its own store: for those who may see the whole of it. */
async function others(signal) {
  const { open_gaps: gaps, lost } = await api.get("troubles", { tenant: null }, signal);
  const chosen = ({ tenant }) => !api.tenant() || tenant === api.tenant();
  return [...gaps.filter(chosen).map((each) => ({ ...each, reason: "retired without a last word", from: millis(each.since), to: millis(each.until) })),
    ...lost.filter(chosen).map((each) => ({ ...each, reason: "lost by the hub", first: each.first_seq, from: null, to: null }))];
}

export function losses({ main, signal, me }) {
  const times = new Map();
  const table = new Table({ name: "Losses", columns: COLUMNS, sort: { key: "records", down: false }, empty: "No loss is known of what is shown here." });
  const figures = el("dl", { class: "figures", "aria-label": "Summary" });
  const troubles = el("div");
  const said = el("p", { class: "advice" });
  const text = el("input", { type: "search", id: "loss-filter", placeholder: "edge, stream, reason" });
  text.addEventListener("input", () => table.filter((each) => `${each.tenant} ${each.edge} ${each.stream} ${each.reason}`.includes(text.value.toLowerCase())));
  main.replaceChildren(...page("Losses", figures, troubles,
    el("form", { class: "filters", role: "search", "aria-label": "Losses", onsubmit: (e) => e.preventDefault() },
      el("label", { for: "loss-filter" }, "Filter"), text), table.element, said));

  const draw = (found) => table.show(found.map((each) => ({ ...each, ...times.get(keyOf(each)) })));

  async function date(found) {
    const wanted = found.filter((each) => each.end && !times.has(keyOf(each))).sort((a, b) => b.records - a.records).slice(0, TIMED);
    let drawn = performance.now();
    await Promise.all(Array.from({ length: AT_ONCE }, async () => {
      for (let loss = wanted.shift(); loss && !signal.aborted; loss = wanted.shift()) {
        const none = () => null; // a file of the table that cannot be read, or a stream that the token may not
        const [from, to] = await Promise.all([timeOf(loss, loss.first - 1, signal).catch(none), timeOf(loss, loss.end, signal).catch(none)]);
        times.set(keyOf(loss), { from, to });
        if (performance.now() - drawn < DRAWN_EACH_MS) continue;
        drawn = performance.now();
        draw(found);
      }
    }));
    draw(found);
  }

  const rounds = new api.Rounds(async () => {
    try {
      const found = sees(me, "status") ? await others(signal) : [];
      let [edges, records, more] = [0, 0, 0];
      for await (const { answer } of api.pages("losses", { signal })) {
        for (const { losses: gaps, ...edge } of answer.edges) {
          edges += 1;
          records += edge.records;
          more += edge.losses_more;
          found.push(...gaps.map((gap) => ({ ...edge, ...gap, records: gap.end - gap.first, reason: REASONS[gap.reason] || gap.reason })));
        }
        const missing = (answer.missing_shards || []).length;
        troubles.replaceChildren(...(missing ? [notice("warn", `${missing} shards cannot be read.`, "What their edges lost is not shown.")] : []));
      }
      figures.replaceChildren(...[["Records", count(records), records && "bad"], ["Edges", count(edges)], ["Gaps", count(found.length + more)]].map(
        ([name, value, kind]) => el("div", { class: kind || null }, el("dt", {}, name), el("dd", {}, value))));
      said.textContent = more ? `${count(more)} smaller gaps are on the pages of their edges.` : "";
      draw(found);
      date(found);
    } catch (error) {
      if (!signal.aborted) troubles.replaceChildren(notice("bad", error.message, error.advice));
    }
  }, { leastMs: 5000, restMs: 60000, signal });
}

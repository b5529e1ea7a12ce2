// Queries of Spark that tell the hub of themselves.

import * as api from "./api.js";
import { ask, button, may } from "./acting.js";
import { badge, count, duration, el, millis, notice, page, rate, when } from "./dom.js";
import { streamLink } from "./streams.js";
import { Table } from "./table.js";

const STATES = { running: "good", failed: "bad", silent: "warn" };
const COLUMNS = [
  { key: "pipeline", title: "Pipeline", value: (p) => p.pipeline },
  { key: "state", title: "State", value: (p) => ["failed", "silent", "running", "ended"].indexOf(p.state),
    cell: (p) => badge(STATES[p.state] || "quiet", p.state, p.state === "silent" ? "It ran when it last told the hub. It is gone, or cut off." : null) },
  { key: "stream", title: "Reads", value: (p) => p.stream, cell: (p) => (p.stream === "*" ? "several streams" : streamLink(p.stream)) },
  { key: "rate", title: "Rate", kind: "number", value: (p) => p.rate, cell: (p) => rate(p.rate) },
  { key: "lag", title: "Records behind", kind: "number", value: (p) => p.lag, cell: (p) => count(p.lag) },
  { key: "batch", title: "Last batch", kind: "short", value: (p) => p.batch, cell: (p) => (p.batch === null ? el("span", { class: "unknown" }, "none yet")
    : `${p.batch}: ${count(p.records)} records in ${p.seconds.toFixed(1)} s`) },
  { key: "idle", title: "Without records for", kind: "number", value: (p) => p.idle_seconds,
    cell: (p) => (p.idle_seconds === null ? "" : duration(p.idle_seconds * 1000)) },
  { key: "complete", title: "Windows complete until", value: (p) => millis(p.complete_until), cell: (p) => (p.complete_until ? when(p.complete_until) : "") },
  { key: "error", title: "Error", kind: "wide", value: (p) => p.error },
  { key: "seen", title: "Told", value: (p) => millis(p.seen), cell: (p) => when(p.seen) },
];

export function pipelines({ main, signal, me }) {
  const troubles = el("div");
  const acts = may(me, "report") ? [{ key: "do", title: "Do", value: () => null, cell: (p) => (p.state === "running" ? "" : button("Forget", p.pipeline, () => forget(p.pipeline))) }] : [];
  const table = new Table({ name: "Pipelines", columns: [...COLUMNS, ...acts], sort: { key: "state", down: false }, empty: "No query of Spark has told this hub of itself." });
  main.replaceChildren(...page("Pipelines", troubles, table.element, el("p", { class: "advice" },
    "A pipeline is here once it runs with ", el("code", {}, "weft spark run --report URL"), " and a token that has the grant report. What it says is not checked.")));

  function forget(name) {
    ask({
      title: `Forget ${name}?`, verb: "Forget", text: "Its last report is removed. It is here again when it reports.", fields: [],
      act: async () => {
        await api.act("DELETE", `pipelines/${encodeURIComponent(name)}`, { query: { tenant: api.tenant() } });
        rounds.poke();
      },
    });
  }

  const rounds = new api.Rounds(async () => {
    try {
      table.show((await api.get("pipelines", {}, signal)).pipelines);
      troubles.replaceChildren();
    } catch (error) {
      if (!signal.aborted) troubles.replaceChildren(notice("bad", error.message, error.advice));
    }
  }, { leastMs: 2000, restMs: 10000, signal });
}

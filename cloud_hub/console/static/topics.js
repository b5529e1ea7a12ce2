// Topics of the hub as a tree: what the newest records say of each.

import * as api from "./api.js";
import { count, el, millis, notice, page } from "./dom.js";
import { TopicTree } from "./tree.js";
import { traceLink } from "./trace.js";

const STREAMS_MAX = 50;
/** Streams that are looked at to find the busiest. */
const LISTED_MAX = 5000;
const RECORDS_MAX = 1000;
const REQUESTS_MAX = 8;
/** Newest records of each stream and shard that are asked for before all others, so that something is seen soon. */
const FIRST_RECORDS = 50;
const AT_ONCE = 4;
const DRAWN_EACH_MS = 300;

/** Return where the records of a topic are read. */
const records = (stream, topic) => `#/records/${encodeURIComponent(stream)}?${new URLSearchParams({ topic })}`;

export function topics({ main, signal, onChange, query }) {
  const only = query.get("stream");
  const tree = new TopicTree({ name: "Topics", signal, empty: "No record yet." });
  const troubles = el("div");
  const said = el("p", { class: "advice" }, "Reading ...");
  const ends = new Map();
  /** Older records of a stream and shard that were not read yet: the first look takes the newest of all before them. */
  const waiting = new Map();
  /** The streams of the tree: a stream stays in it while others become busier. */
  const followed = new Set();
  let drawn = 0;
  main.replaceChildren(...page(only ? `Topics of ${only}` : "Topics", said, troubles, tree.element));

  function draw() {
    drawn = performance.now();
    tree.draw();
  }

  async function take({ name, shard, offset, end }) {
    let chunk;
    for (let left = REQUESTS_MAX; offset < end && left > 0; left -= 1) {
      const answer = await api.get(api.ofStream(name, "/records"), { shard, offset, chunk, limit: Math.min(RECORDS_MAX, end - offset) }, signal);
      for (const each of answer.records) {
        tree.take({ topic: each.key, source: `${each.edge}, stream ${each.stream}`, time: millis(each.time),
          text: each.payload ?? `base64: ${each.payload_base64}`,
          links: [["Records", records(each.stream, each.key)], ["Way", traceLink(each.stream, { shard: each.shard, offset: each.offset })]] });
      }
      offset = answer.next_offset[shard] ?? offset;
      chunk = answer.next_chunk[shard];
      if (performance.now() - drawn > DRAWN_EACH_MS) draw();
      if (!answer.records.length && chunk === undefined) break;
    }
    return offset;
  }

  /** Read some runs of records at a time, in their order. */
  async function takeAll(runs) {
    const next = runs.values();
    await Promise.all(Array.from({ length: AT_ONCE }, async () => {
      for (const run of next) {
        const reached = await take(run);
        const key = `${run.name}\n${run.shard}`;
        if (waiting.get(key) === run) waiting.delete(key);
        ends.set(key, Math.max(reached, ends.get(key) ?? 0));
      }
    }));
    draw();
  }

  /** Return the runs of records that came since the last look; at the first one the newest, those before them wait. */
  function runsOf(found) {
    const newest = [];
    for (const { stream: name, next_offset: at } of found) {
      for (const [shard, end] of Object.entries(at)) {
        const known = ends.get(`${name}\n${shard}`);
        const from = Math.max(known ?? 0, end - RECORDS_MAX);
        const parted = known === undefined ? Math.max(from, end - FIRST_RECORDS) : from;
        newest.push({ name, shard, offset: parted, end });
        if (parted > from) waiting.set(`${name}\n${shard}`, { name, shard, offset: from, end: parted });
      }
    }
    return newest;
  }

  /** Return the streams that had records most often lately, with how many others there are. */
  async function busiest() {
    const { streams } = await api.get("streams", { limit: LISTED_MAX }, signal);
    const busy = (each) => [each.records_per_second ?? 0, each.records ?? 0];
    const having = streams.filter((each) => Object.values(each.next_offset).some(Boolean)).map((each) => [busy(each), each]);
    having.sort(([a], [b]) => b[0] - a[0] || b[1] - a[1]);
    for (const [, { stream }] of having) if (followed.size < STREAMS_MAX) followed.add(stream);
    const found = having.map(([, each]) => each).filter((each) => followed.has(each.stream));
    return { found, others: having.length - found.length };
  }

  const rounds = new api.Rounds(async () => {
    try {
      const { found, others } = only ? { found: [await api.get(api.ofStream(only), {}, signal)], others: 0 } : await busiest();
      const newest = runsOf(found);
      if (newest.length) await takeAll(newest);
      if (waiting.size) await takeAll([...waiting.values()]);
      const more = others ? `, of the ${count(STREAMS_MAX)} busiest streams: the page of each other one leads to its topics` : "";
      said.textContent = `Of the newest ${count(RECORDS_MAX)} records of each stream and shard, and of those that came since${more}.`;
      troubles.replaceChildren();
    } catch (error) {
      if (!signal.aborted) troubles.replaceChildren(notice("bad", error.message, error.advice));
    }
  }, { leastMs: 2000, restMs: 15000, signal });
  onChange((event) => (event.streams.length || event.streams_more) && rounds.poke());
}

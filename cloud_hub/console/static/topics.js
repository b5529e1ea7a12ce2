// Topics of the hub as a tree: what the newest records say of each.

import * as api from "./api.js";
import { count, el, millis, notice, page } from "./dom.js";
import { TopicTree } from "./tree.js";
import { traceLink } from "./trace.js";

const STREAMS_MAX = 50;
const RECORDS_MAX = 1000;
const REQUESTS_MAX = 8;

/** Return where the records of a topic are read. */
const records = (stream, topic) => `#/records/${encodeURIComponent(stream)}?${new URLSearchParams({ topic })}`;

export function topics({ main, signal, onChange, query }) {
  const only = query.get("stream");
  const tree = new TopicTree({ name: "Topics", signal, empty: "No record yet." });
  const troubles = el("div");
  const said = el("p", { class: "advice" }, "Reading ...");
  const ends = new Map();
  let isFirst = true;
  main.replaceChildren(...page(only ? `Topics of ${only}` : "Topics", troubles, tree.element, said));

  async function newest(stream) {
    for (const [shard, end] of Object.entries(stream.next_offset)) {
      const at = `${stream.stream}\n${shard}`;
      let offset = Math.max(ends.get(at) ?? 0, end - RECORDS_MAX);
      let chunk;
      for (let left = REQUESTS_MAX; offset < end && left > 0; left -= 1) {
        const answer = await api.get(api.ofStream(stream.stream, "/records"), { shard, offset, chunk, limit: RECORDS_MAX }, signal);
        for (const each of answer.records) {
          tree.take({ topic: each.key, source: `${each.edge}, stream ${each.stream}`, time: millis(each.time),
            text: each.payload ?? `base64: ${each.payload_base64}`,
            links: [["Records", records(each.stream, each.key)], ["Way", traceLink(each.stream, { shard: each.shard, offset: each.offset })]] });
        }
        offset = answer.next_offset[shard] ?? offset;
        chunk = answer.next_chunk[shard];
        ends.set(at, offset);
        if (!answer.records.length && chunk === undefined) break;
      }
    }
  }

  const rounds = new api.Rounds(async () => {
    try {
      const found = only ? [await api.get(api.ofStream(only), {}, signal)] : (await api.get("streams", { limit: STREAMS_MAX }, signal)).streams;
      for (const stream of found) {
        await newest(stream);
        if (isFirst) tree.draw();
      }
      isFirst = false;
      tree.draw();
      const more = !only && found.length === STREAMS_MAX ? `, of the first ${count(STREAMS_MAX)} streams: a stream's own page leads to its topics` : "";
      said.textContent = `Of the newest ${count(RECORDS_MAX)} records of each stream and shard, and of those that came since${more}.`;
      troubles.replaceChildren();
    } catch (error) {
      if (!signal.aborted) troubles.replaceChildren(notice("bad", error.message, error.advice));
    }
  }, { leastMs: 2000, restMs: 15000, signal });
  onChange((event) => (event.streams.length || event.streams_more) && rounds.poke());
}

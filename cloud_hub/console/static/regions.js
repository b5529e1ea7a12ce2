// Links to other regions: how far each region is behind, what the log keeps for it, and pauses.

import * as api from "./api.js";
import { ask, button, may } from "./acting.js";
import { badge, count, duration, el, notice, page, size } from "./dom.js";
import { Table } from "./table.js";

/** The worst first. */
const STATES = ["conflict", "refused", "no news", "stopped", "waiting", "not begun", "connecting", "paused", "connected"];
const KINDS = { conflict: "bad", refused: "bad", "no news": "bad", stopped: "bad", waiting: "warn", paused: "warn", connected: "good" };
/** Part of `pin` from which on what is kept for a region is near its end. */
const PINNED_LONG = 0.5;

const behind = (seconds) => (seconds === null ? el("span", { class: "unknown" }, "unknown") : seconds ? duration(seconds * 1000) : "nothing");
const stateBadge = (state) => badge(KINDS[state] || "quiet", state);
const lostBadge = (chunks) => (chunks ? badge("bad", `${count(chunks)} chunks`, "The log deleted them before the region had their records: it kept them for the time of the setting pin.") : "none");
const lost = (link) => link.lost_chunks.reduce((sum, each) => sum + each.end - each.first, 0);
/** Sum, or the greatest; null while it is unknown of one link. */
const whole = (values, join) => (values.some((each) => each === null) ? null : values.reduce(join, 0));

const REGIONS = [
  { key: "region", title: "Region", value: (r) => r.region },
  { key: "state", title: "State", value: (r) => STATES.indexOf(r.state), cell: (r) => stateBadge(r.state) },
  { key: "records", title: "Records behind", kind: "number", value: (r) => r.records, cell: (r) => count(r.records) },
  { key: "bytes", title: "Bytes behind", kind: "number", value: (r) => r.bytes, cell: (r) => size(r.bytes) },
  { key: "seconds", title: "Behind by", kind: "number", value: (r) => r.seconds, cell: (r) => behind(r.seconds) },
  { key: "pinned", title: "Pinned history", kind: "short", value: (r) => r.seconds, cell: (r) => {
    const most = `of at most ${duration(r.pin_seconds * 1000)}`;
    if (!r.seconds) return el("span", {}, behind(r.seconds), " ", most);
    const told = `${duration(r.seconds * 1000)} ${most}`;
    return r.seconds > r.pin_seconds * PINNED_LONG ? badge("warn", told, "The log keeps this for the region, and deletes it after that time.") : told;
  } },
  { key: "lost", title: "Lost for it", value: (r) => -r.lost, cell: (r) => lostBadge(r.lost) },
  { key: "error", title: "Last error", kind: "wide", value: (r) => r.error },
];

const LINKS = [
  { key: "region", title: "Region", value: (l) => l.region },
  { key: "shard", title: "Shard", value: (l) => l.shard },
  { key: "state", title: "State", value: (l) => STATES.indexOf(l.state), cell: (l) => stateBadge(l.state) },
  { key: "records", title: "Records behind", kind: "number", value: (l) => l.lag_records, cell: (l) => count(l.lag_records) },
  { key: "bytes", title: "Bytes behind", kind: "number", value: (l) => l.lag_bytes, cell: (l) => size(l.lag_bytes) },
  { key: "seconds", title: "Behind by", kind: "number", value: (l) => l.lag_seconds, cell: (l) => behind(l.lag_seconds) },
  { key: "next", title: "Log kept from chunk", kind: "number", value: (l) => l.next, cell: (l) => count(l.next) },
  { key: "lost", title: "Lost for it", value: (l) => -lost(l), cell: (l) => lostBadge(lost(l)) },
  { key: "error", title: "Last error", kind: "wide", value: (l) => l.error },
  { key: "process", title: "Process", value: (l) => l.process },
  { key: "seen", title: "Told", kind: "number", value: (l) => l.seen_seconds_ago,
    cell: (l) => (l.seen_seconds_ago === null ? el("span", { class: "unknown" }, "never") : `${duration(l.seen_seconds_ago * 1000)} ago`) },
];

/** Return a region with the figures of its links. */
function summed(region, links) {
  const own = links.filter((each) => each.region === region.region);
  const worst = own.reduce((worst, each) => (STATES.indexOf(each.state) < STATES.indexOf(worst) ? each.state : worst), "connected");
  return {
    ...region, state: region.paused ? "paused" : worst, error: own.find((each) => each.error)?.error || "",
    records: whole(own.map((each) => each.lag_records), (sum, each) => sum + each),
    bytes: whole(own.map((each) => each.lag_bytes), (sum, each) => sum + each),
    seconds: whole(own.map((each) => each.lag_seconds), (most, each) => Math.max(most, each)),
    lost: own.reduce((sum, each) => sum + lost(each), 0),
  };
}

export function regions({ main, signal, onChange, me }) {
  const troubles = el("div");
  const said = el("div", { role: "status" });
  const acts = may(me, "nodes") ? [{ key: "do", title: "Do", value: () => null, cell: (r) => (r.paused
    ? button("Resume", r.region, () => order(r, false)) : button("Pause", r.region, () => order(r, true))) }] : [];
  const table = new Table({ name: "Regions", columns: [...REGIONS, ...acts], sort: { key: "state", down: false },
    empty: "No region. The setting regions names the hubs that receive the records of this one's log." });
  const links = new Table({ name: "Links by shard", columns: LINKS, sort: { key: "state", down: false }, empty: "No link." });
  main.replaceChildren(...page("Regions",
    el("p", { class: "advice" }, "Hubs of other clusters that get what this hub's log receives. Links tell of themselves at least each five minutes."),
    said, troubles, table.element, el("h2", {}, "Links by shard"), links.element));

  function order({ region, pin_seconds: pin }, paused) {
    ask({
      title: paused ? `Pause the links to ${region}?` : `Resume the links to ${region}?`, verb: paused ? "Pause" : "Resume",
      text: paused ? `Records for it wait, at all hosts, until a person resumes them. The log keeps them for at most ${duration(pin * 1000)}; what is older is then lost for the region.`
        : "Records for it continue within seconds, from where they stopped.",
      act: async (given) => {
        await api.act("PUT", `regions/${encodeURIComponent(region)}`, { body: { paused, reason: given.reason } });
        said.replaceChildren(notice("good", paused ? `Records for ${region} wait within seconds.` : `Records for ${region} continue within seconds.`));
        rounds.poke();
      },
    });
  }

  const rounds = new api.Rounds(async () => {
    try {
      const answer = await api.get("regions", { tenant: null }, signal);
      table.show(answer.configured.map((each) => summed(each, answer.regions)));
      links.show(answer.regions);
      troubles.replaceChildren();
    } catch (error) {
      if (!signal.aborted) troubles.replaceChildren(notice("bad", error.message, error.advice));
    }
  }, { leastMs: 2000, restMs: 10000, signal });
  let last = null;
  onChange(({ acts: now }) => {
    if (now !== undefined && now !== last && last !== null) rounds.poke();
    last = now ?? last;
  });
}

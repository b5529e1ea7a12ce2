// Messages: the newest of each topic with lines of its numbers, and live ones.

import { get, Refused, send } from "./ask.js";
import { count, el, notice, prose, svg } from "./dom.js";
import { eventsOf, Rounds } from "./rounds.js";
import { TopicTree } from "./tree.js";

const LINES_MAX = 200;
const TOPICS_MAX = 200;
/** The node sees messages for 30 s after it was asked: a slow login or line must not bring a longer pause. */
const ASKED_MS = 10000;
const [WIDTH, HEIGHT] = [110, 26];

/** The text of a payload as an answer has it. */
const text = (payload) => {
  const shown = payload.text ?? payload.hex;
  const isCut = payload.text === undefined ? payload.hex.length < 2 * payload.bytes
    : new TextEncoder().encode(shown).length < payload.bytes;
  return `${payload.text === undefined ? "0x" : ""}${shown}${isCut ? "…" : ""}`;
};

const clock = (seconds) => new Date(seconds * 1000).toISOString().slice(11, 23);

function sparkline([name, values]) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const last = values.at(-1).toLocaleString("en", { maximumSignificantDigits: 6 });
  const label = `${name || "value"}: ${last}`;
  const step = WIDTH / Math.max(1, values.length - 1);
  const y = (value) => (high === low ? HEIGHT / 2 : HEIGHT - 3 - ((value - low) / (high - low)) * (HEIGHT - 6));
  const points = values.map((value, at) => `${(at * step).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  return el("span", { class: "spark", title: `${values.length} values, ${low} to ${high}` }, el("span", {}, label),
    svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, role: "img", "aria-label": label },
      svg("polyline", { points })));
}

/** Return what a section of messages shows: `choices` above `body`; `refused(error)` is told of what is not answered. */
function section(root, title, ...choices) {
  const body = el("div", {});
  root.replaceChildren(el("h2", {}, title), el("div", { class: "filters" }, ...choices), body);
  return body;
}

const filterField = (id, onchange) => el("input", { type: "search", id, size: 28, maxlength: 512, spellcheck: "false",
  autocomplete: "off", placeholder: "#", "aria-label": "Topic filter", title: "A filter of MQTT: plant/+/temperature, plant/#", onchange });

export function topics(root, { signal, refused }) {
  const field = filterField("topic-filter", () => rounds.poke());
  const body = section(root, "Topics", el("label", { for: "topic-filter" }, "Filter"), field);
  const tree = new TopicTree({ name: "Topics", signal, empty: "No message has come since this page was opened.",
    extra: (leaf) => el("span", { class: "sparks" }, Object.entries(leaf.numbers).map(sparkline)) });
  const said = el("p", { class: "advice" });
  const rounds = new Rounds(async () => {
    try {
      const found = await get("topics", { filter: field.value || "#", limit: TOPICS_MAX }, signal);
      if (!tree.element.isConnected) body.replaceChildren(tree.element, said);
      const seconds = Math.max(1, Date.now() / 1000 - found.since);
      tree.set(found.topics.map((each) => ({ topic: each.topic, time: each.time * 1000, text: text(each.payload), numbers: each.numbers,
        rate: each.messages > 1 ? each.messages / seconds : null })));
      tree.draw();
      said.textContent = `Seen since ${clock(found.since).slice(0, 8)} UTC, while a page is open.`
        + (found.is_whole ? "" : " Only the topics with the newest messages: a filter finds others.");
    } catch (error) {
      if (!signal.aborted) shown(body, error, refused);
    }
  }, { restMs: 2000, mostMs: ASKED_MS, signal });
}

export function live(root, { signal, refused }) {
  let following = null;
  let lines = [];
  const begin = () => {
    stop();
    following = new AbortController();
    follow(following.signal);
    button.textContent = "Stop";
  };
  const stop = () => {
    following?.abort();
    following = null;
    button.textContent = "Follow";
  };
  const field = filterField("live-filter", () => following && begin());
  const word = el("input", { type: "search", id: "live-word", size: 16, "aria-label": "Text in the message", oninput: () => draw() });
  const button = el("button", { type: "button", onclick: () => (following ? stop() : begin()) }, "Follow");
  const list = el("ol", { class: "lines", "aria-label": "Live messages", tabindex: "0" });
  const said = el("p", { class: "advice", role: "status" }, "Nothing is read from the node until you follow.");
  const body = section(root, "Live messages", el("label", { for: "live-filter" }, "Filter"), field,
    el("label", { for: "live-word" }, "Text"), word, button);
  body.append(said, list);
  signal.addEventListener("abort", stop);

  const draw = () => {
    const wanted = word.value.toLowerCase();
    list.replaceChildren(...lines.filter((each) => !wanted || each.said.includes(wanted)).map((each) => each.line));
  };
  async function follow(until) {
    let [seen, skipped] = [0, 0];
    try {
      const answer = await send("live", { filter: field.value || "#" }, until);
      said.textContent = "Waiting for messages.";
      for await (const event of eventsOf(answer.body)) {
        if (!event) continue;
        for (const each of event.messages) {
          const payload = text(each.payload);
          const line = el("li", {}, el("time", {}, clock(each.time)), el("code", { class: "topic" }, each.topic), el("code", {}, payload));
          lines.unshift({ said: `${each.topic} ${payload}`.toLowerCase(), line });
        }
        lines = lines.slice(0, LINES_MAX);
        seen += event.messages.length;
        skipped += event.skipped;
        said.textContent = `${count(seen)} messages${skipped ? `, and ${count(skipped)} that came too fast to be shown` : ""}.`;
        draw();
      }
      said.textContent = "The node has ended this. Follow again to continue.";
    } catch (error) {
      if (!until.aborted) {
        said.textContent = "";
        shown(said, error, refused);
      }
    }
    if (!until.aborted) stop();
  }
}

function shown(body, error, refused) {
  if (error instanceof Refused && refused(error)) return;
  const why = error instanceof Refused ? [error.message, error.advice] : ["the node does not answer", ""];
  if (body.tagName === "P") body.replaceChildren(...prose(`${why[0]}: ${why[1]}`));
  else body.replaceChildren(notice(error instanceof Refused ? "warn" : "bad", ...why));
}

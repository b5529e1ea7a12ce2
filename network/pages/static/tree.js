// A tree of topic levels: at each leaf the newest value, its age and its rate. It opens where a search finds something.

import { ago, count, duration, el, rate } from "./dom.js";

const TOPICS_MAX = 5000;
const SHOWN_MAX = 500;
const OPEN_MAX = 40;
const TEXT_MAX = 120;
const LEVEL_MAX = 200;
const RATE_OF = 20;
const CEASED_MS = 60_000;
const CEASED_OF = 5;

/** Return messages a second of the newest ones; null before there are two. */
function rateOf(times) {
  if (times.length < 2) return null;
  const seconds = (Math.max(...times) - Math.min(...times)) / 1000;
  return seconds > 0 ? (times.length - 1) / seconds : null;
}

/** How often messages come, or came until they ceased. */
function often({ rate: perSecond, time }) {
  if (perSecond === null || perSecond === undefined) return "";
  const hasCeased = Date.now() - time > Math.max(CEASED_MS, CEASED_OF / perSecond * 1000);
  return `${hasCeased ? "was " : ""}${perSecond >= 0.1 ? rate(perSecond) : `every ${duration(1000 / perSecond)}`}`;
}

/** The tree. `take` gives it a message, or `set` all topics at once; `draw` shows what it knows. */
export class TopicTree {
  /** empty: what is said without topics. extra(topic): more for a leaf, as an element. */
  constructor({ name, empty, extra = null, signal }) {
    Object.assign(this, { name, empty, extra, topics: new Map(), opened: new Set(), closed: new Set() });
    this.search = el("input", { type: "search", id: "topic-search", placeholder: "part of a topic or value", spellcheck: "false", maxlength: 512,
      oninput: () => {
        this.opened.clear();
        this.closed.clear();
        this.draw();
      } });
    this.said = el("span", { class: "count", role: "status" });
    this.list = el("ul", { class: "tree", "aria-label": name });
    this.element = el("div", {}, el("div", { class: "filters", role: "search", "aria-label": `Search ${name.toLowerCase()}` },
      el("label", { for: "topic-search" }, "Search"), this.search, this.said), this.list);
    const timer = setInterval(() => document.hidden || this.list.contains(document.activeElement) || this.ages(), 1000);
    signal.addEventListener("abort", () => clearInterval(timer));
  }

  /** Take a message: {topic, source, time in ms, text, links}. The newest of a topic is kept; the topics without news go. */
  take(message) {
    const had = this.topics.get(message.topic);
    const times = [...(had?.times ?? []), message.time].sort((a, b) => a - b).slice(-RATE_OF);
    const newest = had && had.time > message.time ? had : message;
    this.topics.delete(message.topic);
    this.topics.set(message.topic, { ...newest, times, rate: rateOf(times), words: `${newest.topic} ${newest.text}`.toLowerCase() });
    if (this.topics.size > TOPICS_MAX) this.topics.delete(this.topics.keys().next().value);
  }

  /** Replace all topics: each {topic, time, text, rate}. */
  set(topics) {
    this.topics = new Map(topics.slice(0, TOPICS_MAX).map((each) => [each.topic, { ...each, words: `${each.topic} ${each.text}`.toLowerCase() }]));
  }

  draw() {
    if (this.list.contains(document.activeElement) && document.activeElement.tagName === "A") return; // a link is about to be followed
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = [...this.topics.values()].filter((each) => words.every((word) => each.words.includes(word)));
    found.sort((a, b) => a.topic.localeCompare(b.topic, "en", { numeric: true }));
    const shown = found.slice(0, SHOWN_MAX);
    const root = { levels: new Map(), leaf: null, count: 0, newest: 0 };
    for (const each of shown) {
      let at = root;
      for (const level of each.topic.split("/")) {
        if (!at.levels.has(level)) at.levels.set(level, { levels: new Map(), leaf: null, count: 0, newest: 0 });
        at = at.levels.get(level);
        at.count += 1;
        at.newest = Math.max(at.newest, each.time);
      }
      at.leaf = each;
    }
    const focused = this.list.contains(document.activeElement) ? document.activeElement.closest("details")?.dataset.path : null;
    this.isOpen = (path, depth) => (this.opened.has(path) || (!this.closed.has(path) && (words.length > 0 || shown.length <= OPEN_MAX || depth < 1)));
    this.list.replaceChildren(...[...root.levels].map(([name, node]) => this.node(name, node, name, 0)));
    if (!shown.length) this.list.append(el("li", { class: "empty" }, words.length ? "No topic and no value has this." : this.empty));
    if (focused !== null && focused !== undefined) {
      [...this.list.querySelectorAll("details")].find((each) => each.dataset.path === focused)?.querySelector("summary").focus();
    }
    const of = words.length ? ` of ${count(this.topics.size)}` : "";
    const text = `${count(found.length)}${of} ${found.length === 1 ? "topic" : "topics"}`
      + (found.length > SHOWN_MAX ? `, the first ${count(SHOWN_MAX)} shown: search for others` : "");
    if (this.said.textContent !== text) this.said.textContent = text;
  }

  node(name, node, path, depth) {
    if (node.levels.size === 1 && !node.leaf) { // levels without a choice stand in one line
      const [[next, below]] = node.levels;
      return this.node(`${name}/${next}`, below, `${path}/${next}`, depth);
    }
    const level = el("code", { class: "level" }, name.slice(0, LEVEL_MAX) || "(empty)", name.length > LEVEL_MAX ? "…" : "");
    if (!node.levels.size) return el("li", {}, el("div", { class: "leaf" }, level, ...this.value(node.leaf)));
    const box = el("details", { open: this.isOpen(path, depth), ontoggle: () => {
      const [to, from] = box.open ? [this.opened, this.closed] : [this.closed, this.opened];
      to.add(path);
      from.delete(path);
      if (box.open) fill();
    } }, el("summary", {}, level, " ", el("span", { class: "count" }, `${count(node.count)} ${node.count === 1 ? "topic" : "topics"}, newest `,
      el("time", { "data-at": node.newest }, ago(node.newest)))));
    box.dataset.path = path;
    const fill = () => {
      if (box.children.length > 1) return;
      box.append(el("ul", {}, node.leaf ? el("li", {}, el("div", { class: "leaf" }, el("code", { class: "level" }, "(itself)"), ...this.value(node.leaf))) : null,
        [...node.levels].map(([each, below]) => this.node(each, below, `${path}/${each}`, depth + 1))));
    };
    if (box.open) fill();
    return el("li", {}, box);
  }

  value(leaf) {
    const text = leaf.text.length > TEXT_MAX ? `${leaf.text.slice(0, TEXT_MAX)}…` : leaf.text;
    return [el("code", { class: "value", title: leaf.source || null }, text),
      el("time", { class: "age", "data-at": leaf.time, datetime: new Date(leaf.time).toISOString() }, ago(leaf.time)),
      el("span", { class: "rate" }, often(leaf)), this.extra ? this.extra(leaf) : null,
      el("span", {}, (leaf.links || []).map(([said, href]) => el("a", { href, "aria-label": `${said} of ${leaf.topic.slice(0, LEVEL_MAX)}` }, said)))];
  }

  ages() {
    for (const each of this.list.querySelectorAll("time")) {
      const text = ago(Number(each.dataset.at));
      if (each.textContent !== text) each.textContent = text;
    }
  }
}

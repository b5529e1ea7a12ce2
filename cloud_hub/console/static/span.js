// The time that a page shows, from weeks to seconds: chosen by a list, by buttons and keys, or as a stretch of a drawing.

import { duration, el, utc } from "./dom.js";

const MINUTE = 60_000;
const LENGTHS = [
  ["10 seconds", 10_000], ["1 minute", MINUTE], ["5 minutes", 5 * MINUTE], ["15 minutes", 15 * MINUTE], ["1 hour", 60 * MINUTE],
  ["6 hours", 360 * MINUTE], ["24 hours", 1440 * MINUTE], ["7 days", 10_080 * MINUTE], ["4 weeks", 40_320 * MINUTE],
  ["12 weeks", 120_960 * MINUTE],
];
const LEAST_MS = 1000;
const MOST_MS = LENGTHS.at(-1)[1];
const DRAWN_LEAST = 6;

/** A stretch of time that ends now, or at a moment that was chosen. `changed` is called after each choice. */
export class Span {
  constructor({ minutes, changed }) {
    Object.assign(this, { length: Math.min(MOST_MS, Math.max(LEAST_MS, minutes * MINUTE)), end: null, changed });
    this.list = el("select", { id: "window", onchange: () => this.list.value && this.zoom(this.list.value / this.length) });
    this.said = el("span", { class: "count", role: "status" });
    this.now = el("button", { type: "button", onclick: () => this.follow() }, "Now");
    const button = (text, act) => el("button", { type: "button", onclick: act }, text);
    this.element = el("div", { class: "filters" }, el("label", { for: "window" }, "Time shown"), this.list,
      button("Zoom in", () => this.zoom(1 / 2)), button("Zoom out", () => this.zoom(2)), button("Before", () => this.move(-1 / 2)),
      button("After", () => this.move(1 / 2)), this.now, this.said);
    this.tell();
  }

  get to() {
    return this.end ?? Date.now();
  }

  get from() {
    return this.to - this.length;
  }

  /** The moment that stays where it is while the length changes; the end, while the drawing goes with the time. */
  middle() {
    return this.end === null ? null : this.to - this.length / 2;
  }

  show(from, to) {
    const length = Math.min(MOST_MS, Math.max(LEAST_MS, to - from));
    const end = (from + to + length) / 2;
    Object.assign(this, { length, end: end >= Date.now() ? null : end });
    this.tell();
    this.changed();
  }

  zoom(factor, at = this.middle()) {
    const length = Math.min(MOST_MS, Math.max(LEAST_MS, this.length * factor));
    if (at === null) this.length = length;
    else return this.show(at - length / 2, at + length / 2);
    this.tell();
    return this.changed();
  }

  move(share) {
    this.show(this.from + this.length * share, this.to + this.length * share);
  }

  follow() {
    this.end = null;
    this.tell();
    this.changed();
  }

  tell() {
    const known = LENGTHS.some(([, ms]) => ms === this.length);
    this.list.replaceChildren(known ? "" : el("option", { value: "", selected: true }, duration(this.length)),
      ...LENGTHS.map(([text, ms]) => el("option", { value: ms, selected: ms === this.length }, text)));
    this.now.disabled = this.end === null;
    this.said.textContent = this.end === null ? "up to now" : `${utc(this.from)} to ${utc(this.to)} UTC`;
  }

  /** Let a drawing of this time be zoomed: by its keys, and by a stretch that is drawn on `surface`. */
  attach(element, surface, reach) {
    element.addEventListener("keydown", (event) => {
      const act = { "+": () => this.zoom(1 / 2), "-": () => this.zoom(2), ArrowLeft: () => this.move(-1 / 4),
        ArrowRight: () => this.move(1 / 4), End: () => this.follow() }[event.key];
      if (!act || event.target !== element || event.ctrlKey || event.altKey || event.metaKey) return;
      event.preventDefault();
      act();
    });
    let began = null;
    const mark = el("div", { class: "stretch", hidden: true });
    element.append(mark);
    const place = (event) => {
      const { left, width } = reach();
      return { left, width, x: Math.max(0, Math.min(width, event.clientX - left)) };
    };
    surface.addEventListener("pointerdown", (event) => {
      if (event.button || event.pointerType === "touch") return; // a finger scrolls the page
      const { x, width } = place(event);
      if (event.clientX < reach().left) return;
      began = { x, from: this.from, per: this.length / width };
      surface.setPointerCapture(event.pointerId);
      event.preventDefault();
      element.focus();
    });
    surface.addEventListener("pointermove", (event) => {
      if (!began) return;
      const { x, left } = place(event);
      const box = surface.getBoundingClientRect();
      const frame = element.getBoundingClientRect();
      mark.hidden = Math.abs(x - began.x) < DRAWN_LEAST;
      Object.assign(mark.style, { left: `${left - frame.left + Math.min(x, began.x)}px`, width: `${Math.abs(x - began.x)}px`,
        top: `${box.top - frame.top}px`, height: `${box.height}px` });
    });
    surface.addEventListener("pointerup", (event) => {
      if (!began) return;
      const { x } = place(event);
      const { from, per } = began;
      const [low, high] = [Math.min(x, began.x), Math.max(x, began.x)];
      began = null;
      mark.hidden = true;
      if (high - low >= DRAWN_LEAST) this.show(from + low * per, from + high * per);
    });
    surface.addEventListener("pointercancel", () => {
      began = null;
      mark.hidden = true;
    });
  }
}

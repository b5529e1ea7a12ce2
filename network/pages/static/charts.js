// Charts by uPlot, which is a script beside this one: lines over time, with gaps as gaps.

/* global uPlot */
import { el, utc } from "./dom.js";

const COLOURS = ["one", "two", "three", "four", "five", "six", "seven", "eight"];
export const SERIES_MAX = COLOURS.length;

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
/** A computed colour: canvas does not know light-dark(). */
export function resolved(name) {
  const probe = el("span", { hidden: true });
  probe.style.color = colour(name);
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

/** Digits after the point that tell values apart that are a step from each other. */
const decimals = (step) => Math.min(12, Math.max(0, -Math.floor(Math.log10(step))));

/** Shade the time from a moment on. */
function shade(plot, from) {
  const { left, top, width, height } = plot.bbox;
  const x = Math.max(left, plot.valToPos(from, "x", true));
  if (!(x < left + width)) return;
  plot.ctx.save();
  plot.ctx.fillStyle = resolved("pending");
  plot.ctx.globalAlpha = 0.18;
  plot.ctx.fillRect(x, top, left + width - x, height);
  plot.ctx.restore();
}

/** A chart that fills its element's width, and is drawn again in other colours or sizes. */
export class Chart {
  /** leastSeconds: the shortest time shown, so that a first value does not stand in an axis of years. stretch(from, to):
   * is told of a stretch of time that is drawn on the chart, in seconds; without it the chart shows that itself. */
  constructor({ label, height = 220, leastSeconds = 1, stretch = null, signal }) {
    this.stretch = stretch;
    this.height = height;
    this.leastSeconds = leastSeconds;
    this.plot = null;
    this.box = el("div", { class: "chart", role: "img", "aria-label": label });
    this.element = this.box;
    const sizes = new ResizeObserver(() => this.plot?.setSize({ width: this.box.clientWidth, height }));
    sizes.observe(this.box);
    const again = () => this.last && this.show(...this.last);
    window.addEventListener("weft-theme", again, { signal });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again, { signal });
    signal.addEventListener("abort", () => {
      sizes.disconnect();
      this.plot?.destroy();
    });
  }

  /** names: of the series. data: [seconds since 1970, values of each series]; null is a gap, undefined no value.
   * span: [from, to] of the axis, else that of the data. unsure: the moment from which on values may still come. */
  show(names, data, { span = null, unsure = null } = {}) {
    this.last = [names, data, { span, unsure }];
    this.plot?.destroy();
    const ink = resolved("soft");
    const line = resolved("line");
    const time = (_, splits, __, ___, step) => splits.map((s) => {
      const text = utc(s * 1000);
      const second = step < 1 ? (s % 60).toFixed(decimals(step)).padStart(3 + decimals(step), "0") : text.slice(17);
      return step >= 86400 ? text.slice(5, 10) : step >= 60 ? text.slice(11, 16) : `${text.slice(11, 17)}${second}`;
    });
    const number = (_, splits, __, ___, step) => splits.map((value) =>
      value.toLocaleString("en", { minimumFractionDigits: decimals(step), maximumFractionDigits: decimals(step) }));
    const [low, high] = [data[0][0], data[0].at(-1)];
    const range = (_, from, to) => (span ? span : low === high || (from === low && to === high) ? [Math.min(low, high - this.leastSeconds), high]
      : [from, to]);
    const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } };
    const points = { show: data[0].length < 200 };
    this.plot = new uPlot({
      width: this.box.clientWidth || 600, height: this.height, tzDate: (s) => uPlot.tzDate(new Date(s * 1000), "UTC"),
      cursor: { y: false, drag: { x: true, y: false, setScale: !this.stretch } },
      hooks: {
        drawClear: [(plot) => unsure !== null && shade(plot, unsure)],
        setSelect: [(plot) => this.stretch && plot.select.width > 0
          && this.stretch(plot.posToVal(plot.select.left, "x"), plot.posToVal(plot.select.left + plot.select.width, "x"))],
      },
      scales: { x: { range } },
      axes: [{ ...axis, values: time, space: 75 }, { ...axis, size: 70, values: number }],
      series: [{ label: "UTC", value: (_, s) => (s === null ? "" : utc(s * 1000)) }, ...names.map((label, at) => ({
        label, stroke: resolved(COLOURS[at % COLOURS.length]), width: 1.5, points, spanGaps: false }))],
    }, data, this.box);
  }
}

/** Return the data of lines: each {name, points: [[ms, value or null], ...]} ascending; null makes a gap. */
export function aligned(lines) {
  const times = [...new Set(lines.flatMap((each) => each.points.map(([time]) => time)))].sort((a, b) => a - b);
  const at = new Map(times.map((time, index) => [time, index]));
  const columns = lines.map((each) => {
    const column = new Array(times.length).fill(undefined);
    for (const [time, value] of each.points) column[at.get(time)] = value;
    return column;
  });
  return [times.map((time) => time / 1000), ...columns];
}

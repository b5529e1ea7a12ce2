// The fleet at a glance: a cell for each edge, by tenant and name, in the colour of its state.

import { resolved } from "./charts.js";
import { el } from "./dom.js";

const COLOURS = { alarm: "gap", late: "pending", linked: "held", away: "away" };
const HEIGHT = 96;
const LARGEST = 26;
const GAP = 2;
/** Below this size, cells touch each other. */
const APART = 5;

export class FleetMap {
  /** kindOf(edge): a key of COLOURS. told(edge): what its cell says. open(edge): its cell was clicked. */
  constructor({ kindOf, told, open, signal }) {
    Object.assign(this, { kindOf, edges: [], wasPart: false });
    this.canvas = el("canvas", { role: "img", height: HEIGHT, "aria-label": "Edges" }); // its place is there from the start on
    this.element = el("div", { class: "map" }, this.canvas);
    this.canvas.addEventListener("mousemove", (event) => {
      const edge = this.at(event);
      this.canvas.title = edge ? told(edge) : "";
      this.canvas.style.cursor = edge ? "pointer" : "default";
    });
    this.canvas.addEventListener("click", (event) => {
      const edge = this.at(event);
      if (edge) open(edge);
    });
    const sizes = new ResizeObserver(() => this.draw());
    sizes.observe(this.element);
    signal.addEventListener("abort", () => sizes.disconnect());
    window.addEventListener("weft-theme", () => this.draw(), { signal });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw(), { signal });
  }

  /** isWhole: whether these are all edges. While more are read, the map is as high as it may become. */
  show(edges, isWhole, label) {
    this.edges = edges;
    this.isWhole = isWhole;
    this.canvas.setAttribute("aria-label", label);
    this.element.hidden = !edges.length;
    this.draw();
  }

  at({ offsetX: x, offsetY: y }) {
    const column = Math.floor(x / this.size);
    return column < this.columns ? this.edges[Math.floor(y / this.size) * this.columns + column] : undefined;
  }

  draw() {
    const width = this.element.clientWidth;
    if (!width || !this.edges.length) return;
    this.size = LARGEST;
    const rows = () => Math.ceil(this.edges.length / Math.max(1, Math.floor(width / this.size)));
    while (this.size > 2 && rows() * this.size > HEIGHT) this.size -= this.size > APART ? 1 : 0.5;
    this.columns = Math.max(1, Math.floor(width / this.size));
    const height = this.isWhole && !this.wasPart ? rows() * this.size : HEIGHT;
    this.wasPart ||= !this.isWhole;
    const scale = window.devicePixelRatio || 1;
    Object.assign(this.canvas, { width: width * scale, height: height * scale });
    this.canvas.style.height = `${height}px`;
    const context = this.canvas.getContext("2d");
    context.scale(scale, scale);
    const side = this.size - (this.size > APART ? GAP : 0.5);
    for (const [kind, name] of Object.entries(COLOURS)) {
      context.fillStyle = resolved(name);
      this.edges.forEach((edge, at) => {
        if (this.kindOf(edge) === kind) context.fillRect((at % this.columns) * this.size, Math.floor(at / this.columns) * this.size, side, side);
      });
    }
  }
}

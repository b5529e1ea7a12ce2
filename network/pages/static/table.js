// A table of many rows: sorted, filtered and shown page by page, so that the document stays small.

import { count, el } from "./dom.js";

const ROWS = 100;
const ROWS_NARROW = 25;
const NARROW = window.matchMedia("(max-width: 700px)");
const named = (each) => each.getAttribute("href") || each.getAttribute("aria-label") || each.dataset.named;

export class Table {
  /** columns: {key, title, value(row) for order, cell(row) for show (else value), kind}. One that is `rare` is left out
   * while no row has a value; "same": while all rows have the same. */
  constructor({ name, columns, key, sort, empty = "Nothing here.", rowClass }) {
    Object.assign(this, { name, all: columns, columns, key, empty, rowClass, rows: [], first: 0, matches: () => true });
    this.sort = sort || { key: columns[0].key, down: false };
    this.head = el("tr", { role: "row" });
    this.body = el("tbody", { role: "rowgroup" });
    this.said = el("span", { class: "count", role: "status" });
    this.back = el("button", { type: "button", hidden: true, onclick: () => this.turn(-1) }, "Earlier rows");
    this.on = el("button", { type: "button", hidden: true, onclick: () => this.turn(1) }, "Later rows");
    this.heads = new Map(columns.map((column) => [column, el("th", { scope: "col", role: "columnheader", class: column.kind },
      el("button", { type: "button", onclick: () => this.by(column.key) }, column.title))]));
    this.head.append(...this.heads.values());
    const table = el("table", { role: "table" }, el("caption", { class: "hidden" }, name),
      el("thead", { role: "rowgroup" }, this.head), this.body);
    this.element = el("div", { class: "table" },
      el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": name }, table),
      el("div", { class: "pager" }, this.said, this.back, this.on));
  }

  show(rows) {
    this.rows = rows;
    this.draw();
  }

  filter(matches) {
    this.matches = matches;
    this.first = 0;
    this.draw();
  }

  by(key) {
    this.sort = { key, down: this.sort.key === key ? !this.sort.down : false };
    this.first = 0;
    this.draw();
  }

  get most() {
    return NARROW.matches ? ROWS_NARROW : ROWS;
  }

  turn(pages) {
    this.first = Math.max(0, this.first + pages * this.most);
    this.draw();
    this.element.querySelector(".scroll").focus();
  }

  draw() {
    const { key, down } = this.sort;
    const { most } = this;
    const isSaid = ({ rare, value }) => new Set(this.rows.map(value).filter((each) => (each ?? null) !== null)).size > (rare === "same" ? 1 : 0);
    this.columns = this.all.filter((each) => !each.rare || isSaid(each));
    const heads = this.columns.map((each) => this.heads.get(each));
    if (heads.some((each, at) => each !== this.head.children[at]) || heads.length !== this.head.children.length) {
      this.head.replaceChildren(...heads);
    }
    const column = this.all.find((each) => each.key === key);
    const found = this.rows.filter((row) => this.matches(row)).map((row) => [column.value(row), row]);
    found.sort(([a], [b]) => compare(a, b, down));
    if (this.first >= found.length) this.first = 0;
    const shown = found.slice(this.first, this.first + most).map(([, row]) => row);
    for (const each of this.columns) {
      const order = each.key === key ? (down ? "descending" : "ascending") : "none";
      this.heads.get(each).setAttribute("aria-sort", order);
    }
    const focused = this.body.contains(document.activeElement) ? named(document.activeElement) : null;
    const opened = new Set([...this.body.querySelectorAll("details[open] > summary")].map(named).filter(Boolean));
    this.body.replaceChildren(...shown.map((row) => this.row(row)));
    for (const each of opened.size || focused ? this.body.querySelectorAll("a, button, summary") : []) {
      if (each.parentElement.localName === "details" && opened.has(named(each))) each.parentElement.open = true;
      if (focused && named(each) === focused) each.focus();
    }
    if (!shown.length) {
      this.body.append(el("tr", { role: "row" },
        el("td", { role: "cell", colspan: this.columns.length, class: "empty" }, this.empty)));
    }
    const of = found.length === this.rows.length ? "" : `, of ${count(this.rows.length)}`;
    const range = found.length > most ? `${count(this.first + 1)} to ${count(this.first + shown.length)} of ` : "";
    const text = `${range}${count(found.length)}${of} ${this.rows.length === 1 ? "row" : "rows"}`;
    if (this.said.textContent !== text) this.said.textContent = text;
    this.back.disabled = this.first === 0;
    this.on.disabled = this.first + most >= found.length;
    this.back.hidden = this.on.hidden = found.length <= most;
  }

  row(row) {
    const cells = this.columns.map((column, index) => {
      const shown = (column.cell ? column.cell(row) : column.value(row)) ?? "";
      const attributes = { class: column.kind, "data-label": column.title };
      return index === 0
        ? el("th", { ...attributes, scope: "row", role: "rowheader" }, shown)
        : el("td", { ...attributes, role: "cell" }, shown === false ? "" : shown);
    });
    return el("tr", { role: "row", class: this.rowClass?.(row) || null }, ...cells);
  }
}

/** Unknown values are last in either order. */
function compare(a, b, down) {
  if (a === null || a === undefined) return b === null || b === undefined ? 0 : 1;
  if (b === null || b === undefined) return -1;
  const order = typeof a === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
  return down ? -order : order;
}

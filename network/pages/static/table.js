// A table of many rows: sorted, filtered and shown page by page, so that the document stays small.

import { count, el } from "./dom.js";

const ROWS = 100;

export class Table {
  /** columns: {key, title, value(row) for order, cell(row) for show (else value), text(row) for the filter, kind}. */
  constructor({ name, columns, key, sort, empty = "Nothing here.", rowClass }) {
    Object.assign(this, { name, columns, key, empty, rowClass, rows: [], first: 0, matches: () => true });
    this.sort = sort || { key: columns[0].key, down: false };
    this.head = el("tr", { role: "row" });
    this.body = el("tbody", { role: "rowgroup" });
    this.said = el("span", { class: "count", role: "status" });
    this.back = el("button", { type: "button", onclick: () => this.turn(-ROWS) }, "Earlier rows");
    this.on = el("button", { type: "button", onclick: () => this.turn(ROWS) }, "Later rows");
    this.buttons = new Map();
    for (const column of columns) {
      const button = el("button", { type: "button", onclick: () => this.by(column.key) }, column.title);
      this.buttons.set(column.key, button);
      this.head.append(el("th", { scope: "col", role: "columnheader", class: column.kind }, button));
    }
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

  turn(rows) {
    this.first = Math.max(0, this.first + rows);
    this.draw();
    this.element.querySelector(".scroll").focus();
  }

  draw() {
    const { key, down } = this.sort;
    const column = this.columns.find((each) => each.key === key);
    const found = this.rows.filter((row) => this.matches(row)).map((row) => [column.value(row), row]);
    found.sort(([a], [b]) => compare(a, b, down));
    if (this.first >= found.length) this.first = 0;
    const shown = found.slice(this.first, this.first + ROWS).map(([, row]) => row);
    for (const [index, each] of this.columns.entries()) {
      const order = each.key === key ? (down ? "descending" : "ascending") : "none";
      this.head.children[index].setAttribute("aria-sort", order);
    }
    const named = (each) => each.getAttribute("href") || each.getAttribute("aria-label");
    const focused = this.body.contains(document.activeElement) ? named(document.activeElement) : null;
    this.body.replaceChildren(...shown.map((row) => this.row(row)));
    if (focused) [...this.body.querySelectorAll("a, button")].find((each) => named(each) === focused)?.focus();
    if (!shown.length) {
      this.body.append(el("tr", { role: "row" },
        el("td", { role: "cell", colspan: this.columns.length, class: "empty" }, this.empty)));
    }
    const of = found.length === this.rows.length ? "" : `, of ${count(this.rows.length)}`;
    const range = found.length > ROWS ? `${count(this.first + 1)} to ${count(this.first + shown.length)} of ` : "";
    const text = `${range}${count(found.length)}${of} ${this.rows.length === 1 ? "row" : "rows"}`;
    if (this.said.textContent !== text) this.said.textContent = text;
    this.back.disabled = this.first === 0;
    this.on.disabled = this.first + ROWS >= found.length;
    this.back.hidden = this.on.hidden = found.length <= ROWS;
  }

  row(row) {
    const cells = this.columns.map((column, index) => {
      const shown = column.cell ? column.cell(row) : column.value(row);
      const attributes = { class: column.kind, "data-label": column.title };
      return index === 0
        ? el("th", { ...attributes, scope: "row", role: "rowheader" }, shown ?? "")
        : el("td", { ...attributes, role: "cell" }, shown ?? "");
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

// Tenants and their quotas: what each may use of the hub, to see and to set.

import * as api from "./api.js";
import { ask, button, field, may, reason, sees } from "./acting.js";
import { badge, count, el, notice, page, size } from "./dom.js";
import { Table } from "./table.js";

const PLAIN = (value) => count(value);
/** Quota -> how it is written, and what its field asks for. */
const QUOTAS = {
  edges: [PLAIN, "Edges that tokens may name"], streams: [PLAIN, "Streams"], links: [PLAIN, "Edges that are linked at one time"],
  lanes: [PLAIN, "Lanes: one for each stream of each edge"], bytes_per_second: [(value) => `${size(value)}/s`, "Bytes in a second"],
  records_per_second: [(value) => `${count(value)}/s`, "Records in a second"],
  table_bytes: [size, "Bytes of all tables"], stored_bytes: [size, "Bytes stored: recorded only"],
};
const MAX = 2 ** 53 - 1;

const COLUMNS = [{ key: "tenant", title: "Tenant", value: (t) => t.tenant },
  { key: "full", title: "At its quota", rare: true, value: (t) => (t.full.length ? 0 : null),
    cell: (t) => t.full.map((each) => badge("warn", each.quota.replaceAll("_", " "), each.wait_seconds ? `its edges wait ${Math.round(each.wait_seconds)} s` : "what is new is refused")) }, ...Object.entries(QUOTAS).map(([name, [text]]) => ({
  key: name, title: name[0].toUpperCase() + name.slice(1).replaceAll("_", " "), kind: "number", value: (t) => t.quotas[name],
  cell: (t) => (t.quotas[name] === null ? el("span", { class: "unknown" }, "no bound") : text(t.quotas[name])),
}))];

export function tenants({ main, signal, onChange, me }) {
  const troubles = el("div");
  const said = el("div", { role: "status" });
  const isActing = may(me, "tenants");
  const acts = isActing ? [{ key: "do", title: "Do", value: () => null, cell: (t) => button("Set quotas", `of ${t.tenant}`, () => change(t)) }] : [];
  const table = new Table({ name: "Quotas of tenants", sort: { key: "full", down: false }, columns: [...COLUMNS, ...acts] });
  main.replaceChildren(...page("Tenants",
    el("p", { class: "advice" }, "A tenant at a rate is slowed; beyond a number, what is new waits. Nothing is lost. ",
      ...(isActing ? [] : ["To change quotas takes a token with the grant tenants, or the command ", el("code", {}, "weft hub tenant set"), "."])),
    said, troubles, isActing ? el("p", {}, el("button", { type: "button", class: "primary", onclick: add }, "Add a tenant")) : "", table.element));

  const fields = (quotas) => Object.entries(QUOTAS).map(([name, [, text]]) => field(name, text, {
    type: "number", min: name.endsWith("_per_second") ? 1 : 0, max: MAX, step: 1, value: quotas[name] ?? null }));

  async function declare(name, version, given) {
    const quotas = Object.fromEntries(Object.keys(QUOTAS).map((each) => [each, given[each] === "" ? null : Number(given[each])]));
    await api.act("PUT", `tenants/${encodeURIComponent(name)}`, { body: { ...quotas, version, reason: given.reason } });
    said.replaceChildren(notice("good", `The quotas of ${name} are declared. Hubs follow within seconds.`));
    await read();
  }

  function change({ tenant, version, quotas }) {
    ask({
      title: `Set the quotas of ${tenant}?`, verb: "Set",
      text: "They hold for links that are open, too, within seconds. An empty field removes the quota.",
      fields: [...fields(quotas), reason()],
      act: (given) => declare(tenant, version, given),
    });
  }

  function add() {
    ask({
      title: "Add a tenant", verb: "Add", text: "Tokens may then be for it. Empty fields are no bound.",
      fields: [field("tenant", "Name", { required: true, maxlength: 64 }), ...fields({}), reason()],
      act: (given) => declare(given.tenant, 0, given),
    });
  }

  async function read() {
    try {
      const found = [];
      for await (const { answer } of api.pages("tenants", { query: { tenant: null }, signal })) found.push(...answer.tenants);
      const wrong = [];
      const full = !sees(me, "status") ? [] : await api.get("troubles", { tenant: null }, signal).then(({ at_quota: at = [] }) => at, (error) => {
        wrong.push(notice("warn", `Which tenants have reached a quota is not known: ${error.message}.`, error.advice));
        return [];
      });
      if (signal.aborted) return;
      table.show(found.map((each) => ({ ...each, full: full.filter((one) => one.tenant === each.tenant) })));
      troubles.replaceChildren(...wrong);
    } catch (error) {
      if (!signal.aborted) troubles.replaceChildren(notice("bad", error.message, error.advice));
    }
  }

  read();
  let last = null;
  onChange((event) => {
    if (event.acts === undefined || event.acts === last) return;
    if (last !== null) read();
    last = event.acts;
  });
}

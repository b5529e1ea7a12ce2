// Who may do what: the declared tokens.

import * as api from "./api.js";
import { ask, button, field, may, post, reason, remove, showSecret } from "./acting.js";
import { badge, count, el, millis, notice, page, utc, when } from "./dom.js";
import { Table } from "./table.js";

const SOON_MS = 30 * 86_400_000;
const SCOPES = ["reader", "edge", "publish", "pull", "region", "admin", "grants"];

function ends(token) {
  const end = millis(token.until);
  if (token.unusable) return badge("bad", "not usable", token.unusable);
  if (end === null || Number.isNaN(end)) return token.until || "never";
  return end - Date.now() < SOON_MS ? badge("warn", when(token.until).textContent, utc(end)) : when(token.until);
}

const COLUMNS = [
  { key: "name", title: "Token", value: (t) => t.name },
  { key: "opens", title: "Opens", value: (t) => t.scope, cell: (t) => (t.grants.length ? t.grants.join(", ") : t.scope || "unknown") },
  { key: "tenant", title: "Tenant", value: (t) => t.tenant },
  { key: "edge", title: "Edge", value: (t) => t.edge },
  { key: "used", title: "Last used", value: (t) => millis(t.last_used),
    cell: (t) => (t.last_used ? when(t.last_used) : el("span", { class: "unknown" }, "not seen")) },
  { key: "ends", title: "Ends", value: (t) => (t.unusable ? 0 : millis(t.until)), cell: ends },
  { key: "secrets", title: "Secrets", kind: "number", value: (t) => t.secrets, cell: (t) => (t.older_until
    ? el("span", { title: `The one before ends at ${t.older_until}` }, count(t.secrets)) : count(t.secrets)) },
  { key: "changed", title: "Changed", value: (t) => millis(t.changed), cell: (t) => el("span", { title: t.reason }, when(t.changed), ` by ${t.by}`) },
];

const words = (text) => text.split(/[\s,]+/).filter(Boolean);

export function tokens({ main, signal, onChange, me }) {
  const troubles = el("div");
  const acts = may(me, "tokens") ? [{ key: "acts", title: "Do", value: () => null, cell: (t) => el("span", { class: "verbs" },
    button("Rotate", t.name, () => rotate(t)), " ", button("Remove", t.name, () => withdraw(t))) }] : [];
  const table = new Table({ name: "Tokens", columns: [...COLUMNS, ...acts], sort: { key: "ends", down: false }, empty: "No token is declared." });
  const text = el("input", { type: "search", id: "token-filter", placeholder: "name, tenant or edge" });
  text.addEventListener("input", () => {
    const word = text.value.toLowerCase();
    table.filter((t) => `${t.name} ${t.tenant} ${t.edge || ""}`.toLowerCase().includes(word));
  });
  const adding = may(me, "tokens") ? el("button", { type: "button", class: "primary", onclick: add }, "Add a token") : null;
  main.replaceChildren(...page("Tokens",
    el("p", { class: "advice" }, "Tokens of the cluster log, which every process of the hub admits. Their secrets are stored nowhere. ",
      acts.length ? "" : "To change them takes a token with the grant tokens, or the command ", acts.length ? "" : el("code", {}, "weft hub token"), acts.length ? "" : "."),
    troubles, el("form", { class: "filters", role: "search", "aria-label": "Tokens", onsubmit: (e) => e.preventDefault() },
      el("label", { for: "token-filter" }, "Filter"), text, adding), table.element));

  function add() {
    ask({
      title: "Add a token", verb: "Add", text: "Its secret is shown once.",
      fields: [field("name", "Name", { required: true, maxlength: 128 }), field("scope", "Opens", {}, ...SCOPES),
        field("grants", "Grants, if that is chosen: read:press-*, edges", {}), field("tenant", "Tenant", { value: "default", required: true }),
        field("edge", "Edge, for the scope edge", {}), field("expires", "Ends after (empty: never)", { value: "365d" }), reason()],
      act: async (given) => showSecret(await made(post("tokens", {
        name: given.name, tenant: given.tenant, edge: given.edge || null, expires: given.expires || null, reason: given.reason,
        ...(given.scope === "grants" ? { grants: words(given.grants) } : { scope: given.scope }),
      }))),
    });
  }

  function rotate(token) {
    ask({
      title: `Rotate ${token.name}?`, verb: "Rotate",
      text: "It gets another secret, which is shown once. The one before stays in force for a while, so that its bearer can take the new one.",
      fields: [field("overlap", "The one before stays for", { value: "7d", required: true }),
        field("expires", "The new one ends after (empty: as the one before)", {}), reason()],
      act: async (given) => showSecret(await made(post(`tokens/${encodeURIComponent(token.name)}/rotate`,
        { overlap: given.overlap, expires: given.expires || null, reason: given.reason }))),
    });
  }

  function withdraw(token) {
    const own = token.name === me.token ? " It is the token of this page." : "";
    ask({
      title: `Remove ${token.name}?`, verb: "Remove",
      text: `What uses it is refused, and its links end within seconds.${own}`,
      act: async (given) => {
        await remove(`tokens/${encodeURIComponent(token.name)}`, { reason: given.reason });
        await read();
      },
    });
  }

  async function made(answer) {
    const secret = await answer;
    read();
    return secret;
  }

  async function read() {
    try {
      const found = [];
      for await (const { answer } of api.pages("tokens", { query: { tenant: null }, signal })) found.push(...answer.tokens);
      table.show(found);
      troubles.replaceChildren();
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

// The frame of all pages: login, the page that the address names, and what changes.

import * as api from "./api.js";
import { sees } from "./acting.js";
import { el, notice } from "./dom.js";
import { edge } from "./edge.js";
import { fleet } from "./fleet.js";
import { losses } from "./losses.js";
import { audit, nodes } from "./operator.js";
import { pipelines } from "./pipelines.js";
import { records } from "./records.js";
import { regions } from "./regions.js";
import { stream } from "./stream.js";
import { streams, tables } from "./streams.js";
import { tenants } from "./tenants.js";
import { themes } from "./theme.js";
import { tokens } from "./tokens.js";
import { topics } from "./topics.js";
import { trace } from "./trace.js";

const PAGES = {
  fleet, losses, topics, edges: edge, tables, pipelines, nodes, regions, tokens, tenants, audit, records, trace,
  streams: (at) => (at.rest[0] ? stream(at) : streams(at)),
};
/** Pages that are reached from another one, which is marked for them, with the number of names in their address. */
const BELOW = { records: ["Streams", 1], trace: ["Streams", 1], edges: ["Fleet", 2], losses: ["Fleet", 0] };
const NEEDS = { fleet: "edges", streams: "read", topics: "read", tables: "read", pipelines: "read", nodes: "status", regions: "status", tokens: "acts", tenants: "tenants", audit: "acts" };
/** Longest time for which a page shows nothing but its name: it is drawn once its first answers are there. */
const READING_MS = 1500;
const by = (id) => document.getElementById(id);
const main = by("main");
const nav = document.querySelector("nav");
let shown = null;
let following = null;
let me = null;
const listeners = new Set();

function login(why) {
  stop();
  nav.hidden = by("leave").hidden = by("live").hidden = by("tenant-box").hidden = true;
  const field = el("input", { type: "password", id: "token", autocomplete: "off", spellcheck: "false", required: true });
  const form = el("form", { class: "login", onsubmit: (event) => {
    event.preventDefault();
    api.keepToken(field.value.trim());
    begin();
  } }, el("h1", {}, "Sign in"), why ? notice("bad", why.message, why.advice) : null,
  el("p", {}, "Paste a token of this hub. It stays in this tab of the browser, and is forgotten with it."),
  el("label", { for: "token" }, "Token"), field, el("button", { type: "submit", class: "primary" }, "Sign in"),
  el("p", { class: "advice" }, "An operator makes one with ", el("code", {}, "weft hub token add hub.yaml mara --scope reader"), "."));
  main.replaceChildren(form);
  field.focus();
}

function stop() {
  shown?.abort();
  following?.abort();
  shown = following = null;
  delete main.dataset.absent;
  delete main.dataset.reading;
}

async function begin() {
  try {
    me = await api.get("whoami", { tenant: null });
  } catch (error) {
    if (error.status === 401) {
      const had = api.token();
      api.forgetToken();
      return login(had ? error : null);
    }
    main.replaceChildren(notice("bad", error.message, error.advice),
      el("button", { type: "button", onclick: begin }, "Try again"));
    return null;
  }
  nav.hidden = false;
  for (const link of nav.children) link.hidden = !sees(me, NEEDS[link.hash.slice(2)]);
  by("leave").hidden = !me.token;
  by("tenant-box").hidden = !["admin", "anonymous"].includes(me.scope);
  by("tenant").value = api.tenant();
  open();
  return listen();
}

function open() {
  if (!me) return;
  shown?.abort();
  shown = new AbortController();
  listeners.clear();
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/").map(decodeURIComponent);
  const home = [...nav.children].find((link) => !link.hidden)?.hash.slice(2) || "fleet";
  const chosen = Object.hasOwn(PAGES, name) && rest.filter(Boolean).length >= (BELOW[name]?.[1] ?? 0) ? name : home;
  for (const link of nav.children) {
    const isThis = link.getAttribute("href") === `#/${chosen}` || link.textContent === BELOW[chosen]?.[0];
    if (isThis) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
    if (isThis) nav.scrollLeft = link.offsetLeft - nav.offsetLeft - (nav.clientWidth - link.offsetWidth) / 2;
  }
  by("tenant").placeholder = ["fleet", "losses"].includes(chosen) ? "all" : me.tenant || "default";
  const { signal } = shown;
  const onChange = (listener) => listeners.add(listener);
  delete main.dataset.absent;
  main.dataset.reading = "";
  api.whenRead(() => delete main.dataset.reading, READING_MS);
  PAGES[chosen]({ main, signal, onChange, rest, query: new URLSearchParams(query || ""), me });
  document.title = `${[main.querySelector("h1")?.textContent, "Weft hub"].filter(Boolean).join(" - ")}`;
}

function listen() {
  following?.abort();
  following = new AbortController();
  const live = by("live");
  const state = (now) => {
    live.hidden = false;
    live.className = `live ${now}`;
    live.textContent = { on: "live", off: "reconnecting", none: "no live changes" }[now];
  };
  if (document.hidden) return;
  api.follow((event) => listeners.forEach((each) => each(event)), state, following.signal);
}

themes(by("theme"));
by("leave").addEventListener("click", () => {
  api.forgetToken();
  me = null;
  login();
});
by("tenant").addEventListener("change", (event) => {
  api.keepTenant(event.target.value.trim());
  open();
  listen();
});
document.querySelector("[data-skip]").addEventListener("click", (event) => {
  event.preventDefault(); // the address names the page
  main.focus();
});
window.addEventListener("hashchange", () => {
  if (!me) return;
  open();
  main.focus();
});
document.addEventListener("visibilitychange", () => me && (document.hidden ? following?.abort() : listen()));
begin();

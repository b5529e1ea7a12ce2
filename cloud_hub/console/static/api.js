// Requests to the hub's API. The token is in sessionStorage only, and goes in the Authorization header: there are no
// cookies, so that a page of someone else cannot act.

import { eventsOf } from "./rounds.js";

export { Rounds } from "./rounds.js";

const KEY = "weft-token";
const TENANT = "weft-tenant";
const REFUSED = { detail: "The hub does not take this token.", advice: "Paste the whole of it again; it may also have ended, or have been removed." };
/** Time after an answer in which the page asks for what this one named. */
const QUIET_MS = 40;
const V1 = new URL("../v1/", import.meta.url);

export class Refused extends Error {
  constructor(status, error, advice, retry) {
    super(error);
    this.status = status;
    this.advice = advice;
    this.retry = retry;
  }
}

export const token = () => sessionStorage.getItem(KEY);
export const keepToken = (text) => sessionStorage.setItem(KEY, text);
/** The tenant goes with the token: the next one may be of another. */
export const forgetToken = () => [KEY, TENANT].forEach((each) => sessionStorage.removeItem(each));
export const tenant = () => sessionStorage.getItem(TENANT) || "";
export const keepTenant = (name) => sessionStorage.setItem(TENANT, name);

let waiting = 0;
let quiet = null;
/** Call back once, as soon as no answer of a list is waited for; after `mostMs` in any case. */
export function whenRead(callback, mostMs) {
  const timer = setTimeout(callback, mostMs);
  quiet = () => {
    clearTimeout(timer);
    callback();
  };
}
function answered() {
  waiting -= 1;
  setTimeout(() => {
    if (waiting || !quiet) return;
    quiet();
    quiet = null;
  }, QUIET_MS);
}

async function send(path, query, { signal, accept, method = "GET", body } = {}) {
  const url = new URL(path, V1);
  const given = { ...query };
  if (given.tenant === undefined) given.tenant = tenant(); // null asks for all tenants
  for (const [name, value] of Object.entries(given)) {
    if (value !== null && value !== undefined && value !== "") url.searchParams.set(name, value);
  }
  const headers = { Accept: accept || "application/json" };
  if (token()) headers.Authorization = `Bearer ${token()}`;
  let answer;
  try {
    answer = await fetch(url, { method, headers, signal, body, credentials: "omit", cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "The hub does not answer.",
      method === "GET" ? "It is asked again by itself." : "It is not known whether it was done: look, before you try again.");
  }
  if (answer.ok) return answer;
  let told = {};
  try {
    told = await answer.json();
  } catch {
    // another program than a hub: a proxy
  }
  // What a program would do next is in the answer; a person has the pages, and the field of the token.
  const { advice = "" } = answer.status === 401 ? REFUSED : told;
  const retry = Number(answer.headers.get("Retry-After")) || null;
  throw new Refused(answer.status, (answer.status === 401 ? REFUSED : told).detail || `${answer.status} ${answer.statusText}`,
    advice.includes("GET /v1/") ? "" : advice, retry);
}

/** Return the answer to GET /v1/PATH. */
export async function get(path, query, signal) {
  waiting += 1;
  try {
    return await (await send(path, query, { signal })).json();
  } finally {
    answered();
  }
}

/** Act for the whole hub, and return the answer. */
export const act = async (method, path, { query, body } = {}) =>
  (await send(path, { tenant: null, ...query }, { method, body: body && JSON.stringify(body) })).json();

/** Yield the pages of a list, the first of `first` entries so that something is seen soon. */
export async function* pages(path, { first = 500, rest = 5000, most = 40, query, signal } = {}) {
  let after = null;
  for (let number = 0; number < most; number += 1) {
    const limit = number ? rest : first;
    const answer = await get(path, { ...query, limit, after }, signal);
    after = answer.next_after;
    yield { answer, isLast: !after };
    if (!after) return;
  }
}

export const ofStream = (name, below = "") => `streams/${encodeURIComponent(name)}${below}`;

/** Call `told` with each event of /v1/changes until the signal ends it; `state` with "on" or "off". It reconnects. */
export async function follow(told, state, signal) {
  let wait = 1000;
  while (!signal.aborted) {
    try {
      // EventSource sends no Authorization header.
      const answer = await send("changes", {}, { signal, accept: "text/event-stream" });
      state("on");
      for await (const event of eventsOf(answer.body)) {
        wait = 1000;
        if (event) told(event);
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error.status === 401 || error.status === 403) return state("none");
      if (error.retry) wait = error.retry * 1000;
    }
    state("off");
    await new Promise((resolve) => setTimeout(resolve, wait * (1 + Math.random() / 2)));
    wait = Math.min(wait * 2, 30000);
  }
}

// Requests to the node. A user's name and password are in sessionStorage only, and go in the Authorization header: there
// are no cookies, so that a page of someone else cannot act.

import { el, notice } from "./dom.js";

const KEY = "weft-user";

export class Refused extends Error {
  constructor(status, { detail, advice }) {
    super(detail);
    Object.assign(this, { status, advice });
  }
}

export const isSignedIn = () => sessionStorage.getItem(KEY) !== null;
export const signOut = () => sessionStorage.removeItem(KEY);

/** Return the answer to a request, which is refused as `Refused`. */
export async function send(path, query = {}, signal = undefined) {
  const kept = sessionStorage.getItem(KEY);
  const headers = kept ? { Authorization: `Basic ${kept}` } : {};
  const found = await fetch(`${path}?${new URLSearchParams(query)}`, { headers, signal, cache: "no-store" });
  if (found.ok) return found;
  let said;
  try {
    said = await found.json();
  } catch {
    said = { detail: `the node answered ${found.status}`, advice: "" };
  }
  throw new Refused(found.status, said);
}

export const get = async (path, query, signal) => (await send(path, query, signal)).json();

/** A form for name and password, shown in the place of messages. */
export function signInForm(why, then) {
  const had = isSignedIn();
  const name = el("input", { id: "user", autocomplete: "username", spellcheck: "false", required: true });
  const word = el("input", { id: "password", type: "password", autocomplete: "current-password", required: true });
  return el("form", { class: "login", onsubmit: (event) => {
    event.preventDefault();
    const bytes = new TextEncoder().encode(`${name.value}:${word.value}`);
    sessionStorage.setItem(KEY, btoa(String.fromCharCode(...bytes)));
    then();
  } }, el("h3", {}, "Messages are for users of this node"), had ? notice("bad", why.message, why.advice) : null,
  el("label", { for: "user" }, "Name"), name, el("label", { for: "password" }, "Password"), word,
  el("button", { type: "submit", class: "primary" }, "Sign in"));
}

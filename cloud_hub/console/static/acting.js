// What a person does at the hub: asked before, with what will happen, and told after. The hub checks the right.

import * as api from "./api.js";
import { el, notice } from "./dom.js";

const has = (me, right) => me.rights.some((each) => each.split(":")[0] === right);

/** Whether the token has a right to see. A hub of a release before says none; the API then answers. */
export const sees = (me, right) => me.scope === "anonymous" || !me.rights?.length || has(me, right);

/** Whether the page offers acts of a right. Without tokens the hub takes none from browsers. */
export const may = (me, right) => Boolean(me.token) && has(me, right);

let number = 0;

/** Return a field for `ask`: its label stands above it, and its value goes into the answer by the name. */
export const field = (name, text, attributes, ...options) => {
  const id = `ask-${name}-${number += 1}`;
  const control = options.length
    ? el("select", { id, name }, options.map((each) => el("option", {}, each)))
    : el("input", { id, name, autocomplete: "off", spellcheck: "false", ...attributes });
  return el("p", { class: "ask" }, el("label", { for: id }, text), control);
};

export const reason = () => field("reason", "Why (for the audit log)", { maxlength: 512 });

/** Ask a person, and call `act` with the fields' values. The dialogue stays open with the reason if it fails. */
export function ask({ title, text, fields = [reason()], verb, act }) {
  const troubles = el("div");
  const close = el("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
  const go = el("button", { type: "submit", class: "primary" }, verb);
  const form = el("form", { onsubmit: async (event) => {
    event.preventDefault();
    go.disabled = true;
    try {
      await act(Object.fromEntries(new FormData(form)));
      dialog.close();
    } catch (error) {
      troubles.replaceChildren(notice("bad", error.message, error.advice));
    }
    go.disabled = false;
  } }, el("h2", { id: "ask-title" }, title), el("p", {}, text), fields, troubles, el("p", { class: "verbs" }, go, " ", close));
  const dialog = el("dialog", { "aria-labelledby": "ask-title" }, form);
  const before = document.activeElement;
  dialog.addEventListener("close", () => {
    dialog.remove();
    if (before?.isConnected) before.focus();
  });
  document.getElementById("main").append(dialog);
  dialog.showModal();
}

/** Show a secret once, in a field that can be copied. */
export function showSecret({ name, token, until }) {
  const field = el("input", { id: "secret", readonly: true, value: token, class: "code" });
  const dialog = el("dialog", { "aria-labelledby": "secret-title" },
    el("h2", { id: "secret-title" }, `The secret of ${name}`),
    el("p", {}, "It is shown this once, and stored nowhere. Give it to its bearer over a way that nobody else reads."),
    el("p", { class: "ask" }, el("label", { for: "secret" }, "Secret"), field),
    el("p", { class: "advice" }, until ? `It ends at ${until}.` : "It has no end."),
    el("p", { class: "verbs" }, el("button", { type: "button", class: "primary", onclick: () => dialog.close() }, "I have it")));
  dialog.addEventListener("close", () => {
    field.value = "";
    dialog.remove();
    document.getElementById("main").focus();
  });
  document.getElementById("main").append(dialog);
  dialog.showModal();
  field.focus();
  field.select();
}

/** Return a button of a row, with the row's name for those who do not see it. */
export const button = (verb, name, onclick) =>
  el("button", { type: "button", "aria-label": `${verb} ${name}`, onclick }, verb);

export const post = (path, body) => api.act("POST", path, { body });
export const remove = (path, query) => api.act("DELETE", path, { query });

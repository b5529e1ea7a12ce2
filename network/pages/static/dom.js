// Elements, and texts for people. Text never becomes markup: everything goes through textContent.

const SVG = "http://www.w3.org/2000/svg";

function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((each) => each !== null && each !== undefined && each !== ""));
  return made;
}

/** Return an element: el("p", {class: "x"}, "text", child). */
export const el = (name, attributes, ...children) => filled(document.createElement(name), attributes, children);

/** Return an element of SVG. */
export const svg = (name, attributes, ...children) =>
  filled(document.createElementNS(SVG, name), attributes, children);

/** Return a field with its label, which stay beside each other. */
export const labelled = (text, field) => el("span", { class: "pair" }, el("label", { for: field.id }, text), field);

/** Return milliseconds since 1970 of an RFC 3339 text with nanoseconds; null if there is none. */
export function millis(text) {
  if (!text) return null;
  const time = Date.parse(text.replace(/(\.\d{3})\d*Z$/, "$1Z"));
  return Number.isNaN(time) ? null : time;
}

const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

/** Return a duration as one or two units: "3 min", "2 d 4 h". */
export function duration(ms) {
  let left = Math.round(Math.abs(ms) / 1000);
  if (left < 1) return "0 s";
  const parts = [];
  for (const [seconds, unit] of UNITS) {
    if (left >= seconds && parts.length < 2) {
      parts.push(`${Math.floor(left / seconds)} ${unit}`);
      left %= seconds;
    } else if (parts.length) break;
  }
  return parts.join(" ");
}

/** Return how long ago a moment was. */
export function ago(time, now = Date.now()) {
  if (time === null) return "unknown";
  return time > now + 1500 ? `in ${duration(time - now)}` : `${duration(now - time)} ago`;
}

/** Return a moment in UTC, to the second. */
export const utc = (time) => (time === null ? "unknown" : new Date(time).toISOString().slice(0, 19).replace("T", " "));

/** Return a <time> that says how long ago, with the moment itself as its title. */
export function when(text, now) {
  const time = millis(text);
  if (time === null) return el("span", { class: "unknown" }, "unknown");
  return el("time", { datetime: text, title: `${utc(time)} UTC` }, ago(time, now));
}

export const count = (value) => (value === null || value === undefined ? "unknown" : value.toLocaleString("en"));

export function rate(perSecond) {
  if (perSecond === null || perSecond === undefined) return "unknown";
  const digits = perSecond >= 100 ? 0 : perSecond >= 1 ? 1 : 3;
  return `${perSecond.toLocaleString("en", { maximumFractionDigits: digits })}/s`;
}

/** Return bytes in the unit in which they are read: "5.1 KiB". */
export function size(bytes) {
  if (bytes === null || bytes === undefined) return "unknown";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  let left = bytes;
  for (; left >= 1024 && at < units.length - 1; at += 1) left /= 1024;
  return `${left.toLocaleString("en", { maximumFractionDigits: left < 10 && at ? 1 : 0 })} ${units[at]}`;
}

/** Return a mark that says good, warning or bad by word, shape and colour. */
export const badge = (kind, text, title) => el("span", { class: `badge ${kind}`, title }, text);

/** Return text of the hub whose `commands` are set as code. */
export const prose = (text) => text.split("`").map((part, at) => (at % 2 ? el("code", {}, part) : part));

export const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);

export const page = (title, ...rest) => [el("h1", {}, title), ...rest];

/** Say on a page that what its address names is not there. */
export function absent(main, troubles, text, ...more) {
  main.dataset.absent = "";
  troubles.className = "troubles";
  troubles.replaceChildren(el("div", { class: "notice warn", role: "status" }, el("strong", {}, text), " ", ...more));
}

export function notice(kind, text, advice, ...more) {
  return el("div", { class: `notice ${kind}`, role: kind === "bad" ? "alert" : "status" },
    el("strong", {}, prose(text)), advice ? el("span", {}, " ", prose(advice)) : null, more.length ? " " : null, ...more);
}

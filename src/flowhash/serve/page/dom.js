// Elements, numbers and messages. Data becomes text nodes and attributes, never markup.

const SVG = "http://www.w3.org/2000/svg";
const SMALL = 48; // pictures up to this size are enlarged pixel by pixel, not smeared

export const byId = (id) => document.getElementById(id);

/** An element with attributes and children; strings become text. */
export function element(name, attributes = {}, ...children) {
  return furnished(document.createElement(name), attributes, children);
}

/** The same for a drawing. */
export function drawn(name, attributes = {}, ...children) {
  return furnished(document.createElementNS(SVG, name), attributes, children);
}

function furnished(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

export const count = (number) => number.toLocaleString("en");

/** A count with its word: "1 item", "1,000 items". */
export const counted = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;

/** A measured number with about three digits. */
export function rounded(number) {
  if (number === null || number === undefined || !Number.isFinite(number)) return "–";
  const size = Math.abs(number);
  if (size >= 100) return count(Math.round(number));
  if (size !== 0 && size < 0.001) return number.toExponential(1);
  return Number(number.toPrecision(3)).toString();
}

export const percent = (share) => `${rounded(100 * share)} %`;

/** What a person would call an item: its class, then its name. */
export function titleOf(item) {
  return [item.label, item.name].filter((part) => part !== null && part !== undefined).join(", ") || `item ${item.id}`;
}

/** A picture, or a tile with the first signs of the title where there is none. */
export function picture(source, title, role = "") {
  const frame = element("span", { class: "frame" });
  const instead = () => frame.replaceChildren(tile(title));
  if (!source) {
    instead();
    return frame;
  }
  const image = element("img", { alt: role + title, decoding: "async", loading: "lazy" });
  image.addEventListener("load", () => image.classList.toggle("pixels", image.naturalWidth <= SMALL));
  image.addEventListener("error", instead);
  // The server gives paths from its root; the page may lie below some other path.
  image.src = source.replace(/^\/(?!\/)/, "");
  frame.append(image);
  return frame;
}

/** The numbers of a vector as bars, up or down from the middle. */
export function sketch(values) {
  const most = Math.max(...values.map(Math.abs)) || 1;
  const bars = values.map((value, place) => `M${place + 0.1} 1v${-value / most}h.8v${value / most}z`).join("");
  const title = `the query: a vector of ${counted(values.length, "number")}`;
  const drawing = drawn("svg", { class: "sketch", viewBox: `0 0 ${values.length} 2`, preserveAspectRatio: "none", role: "img", "aria-label": title }, drawn("path", { d: bars }));
  return element("span", { class: "frame" }, drawing);
}

function tile(title) {
  const signs = Array.from(title.replace(/[\s_]+/g, " ").trim()).slice(0, 2).join("");
  return element("span", { class: "tile", role: "img", "aria-label": `no picture of ${title}` }, signs);
}

/** A text that may be wrapped after the signs that file and class names are joined by. */
function breakable(text) {
  return text.split(/(?<=[_/.-])/).flatMap((part, index) => (index ? [element("wbr"), part] : [part]));
}

/** An item as a link that searches by it. */
export function card(item, link, extras = {}) {
  const title = titleOf(item);
  const label = item.label ?? item.name ?? `item ${item.id}`;
  const name = item.label === null || item.label === undefined ? `id ${item.id}` : item.name ?? `id ${item.id}`;
  const words = element(
    "span", { class: "words" },
    // The picture's own text says both already.
    element("span", { class: "label", "aria-hidden": "true" }, ...breakable(label)),
    element("span", { class: "name", "aria-hidden": "true", title: name }, name),
    extras.distance === undefined
      ? null
      : element("span", { class: "distance" }, element("span", { class: "unseen" }, "distance "), rounded(extras.distance)),
  );
  const mark = extras.same ? element("span", { class: "mark", role: "img", "aria-label": "same class" }, "✓") : null;
  const anchor = element("a", { href: link }, picture(item.picture, title), words, mark);
  return element("li", { class: extras.same ? "card same" : "card", "data-id": String(item.id) }, anchor);
}

/** Names and values with remarks, as a description list's lines. */
export function figure(name, value, remark = "") {
  return element("div", {}, element("dt", {}, name), element("dd", {}, element("strong", {}, value), " ", element("span", {}, remark)));
}

/** Numbers of a text field: JSON, or separated by commas, spaces or lines. */
export function numbers(text, what) {
  const parts = text.replace(/^[\s[(]+|[\s\])]+$/g, "").split(/[\s,;]+/).filter(Boolean);
  const values = parts.map(Number);
  const wrong = values.findIndex((value) => !Number.isFinite(value));
  if (wrong !== -1) throw new Error(`${what}: “${parts[wrong].slice(0, 40)}” is not a number; expected numbers separated by commas.`);
  if (!values.length) throw new Error(`${what}: no numbers came; expected numbers separated by commas.`);
  return values;
}

// Messages -----------------------------------------------------------------------------------

let waiting = 0;

/** Show that something is on its way until it is there. */
export async function busy(promise) {
  waiting += 1;
  byId("progress").hidden = false;
  try {
    return await promise;
  } finally {
    waiting -= 1;
    byId("progress").hidden = waiting === 0;
  }
}

/** Say something to those who listen rather than look. */
export function say(text) {
  byId("status").textContent = text;
}

/** Show what went wrong; what was only given up for something newer is nothing wrong. */
export function problem(error) {
  if (error.name === "AbortError") return;
  const close = element("button", { type: "button", class: "close", "aria-label": "Close this message" }, "×");
  close.addEventListener("click", () => {
    settled();
    byId("content").focus({ preventScroll: true });
  });
  byId("alert").replaceChildren(element("div", { class: "problem" }, element("p", {}, error.message), close));
}

/** Take the message away. */
export function settled() {
  byId("alert").replaceChildren();
}

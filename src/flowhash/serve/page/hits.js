// The answer to a search: the query, what it cost, and the hits.

import { byId, card, count, counted, element, figure, percent, picture, rounded, say, sketch } from "./dom.js";
import { offerDelete } from "./items.js";

const CHIPS = 24; // opened buckets that are listed; the rest is counted

const DISTANCES = { euclidean: "squared distance", cosine: "cosine distance", inner: "inner product, negated" };

let site;

/** Put an answer on the page. */
export function render(given, asked, answer, top) {
  site = given;
  const found = answer.answers[0];
  site.title(asked.title);
  byId("results-title").textContent = `Hits for ${asked.title}`;
  byId("query-about").textContent = asked.about;
  const shown = byId("query-picture").querySelector("img")?.src ?? "";
  if (shown.startsWith("blob:")) URL.revokeObjectURL(shown);
  byId("query-picture").replaceChildren(asked.vector ? sketch(asked.vector) : picture(asked.source, asked.title, "the query: "));
  byId("query-more").replaceChildren(...aboutItem(asked.item));
  const label = asked.item?.label ?? null;
  byId("figures").replaceChildren(...figures(answer, found, asked.item));
  byId("opened").replaceChildren(...opened(found.opened, answer.recall));
  const few = byId("few");
  few.hidden = found.hits.length >= top;
  few.textContent = tooFew(found.hits.length, answer.recall === null ? "Open more buckets" : "Ask for a higher recall, or for none and open more buckets,");
  const marked = label === null ? "" : ` ✓ has the same class as the query, ${label}.`;
  byId("legend").hidden = !found.hits.length;
  byId("legend").textContent = `Nearest first; the number is the ${DISTANCES[site.stats.metric] ?? "distance"}.${marked}`;
  byId("hits").replaceChildren(...found.hits.map((hit) => {
    const same = label !== null && hit.label === label;
    return card(hit, site.itemLink(hit.id), { distance: hit.distance, same });
  }));
  say(`${counted(found.hits.length, "hit")}. Scanned ${count(found.scanned)} of ${counted(answer.items, "item")}.`);
}

function tooFew(hits, advice) {
  if (hits) return `The opened buckets hold only ${counted(hits, "hit")}. ${advice} to see more.`;
  return `The opened buckets are empty. ${advice} to see the nearest items of others.`;
}

/** A stored item's buckets, the user's own payload, and the button that deletes it. */
function aboutItem(item) {
  if (item === null) return [];
  const parts = [];
  if (item.buckets?.length) {
    parts.push(element("p", { class: "opened" }, item.buckets.length === 1 ? "It lives in bucket " : "It lives in buckets ", ...chips(item.buckets)));
  }
  if (item.payload && Object.keys(item.payload).length) {
    const text = JSON.stringify(item.payload, null, 1);
    parts.push(element("details", {}, element("summary", {}, "Payload"), element("pre", { tabindex: "0" }, text)));
  }
  parts.push(offerDelete(item));
  return parts;
}

function chips(buckets) {
  const made = buckets.slice(0, CHIPS).map((bucket) => element("a", { class: "chip", href: site.link("buckets", { bucket }) }, String(bucket)));
  const rest = buckets.length - made.length;
  return rest ? [...made, ` and ${count(rest)} more`] : made;
}

function opened(buckets, recall) {
  const what = recall === null ? "Opened" : `For a recall of ${percent(recall)}, opened`;
  return [buckets.length === 1 ? `${what} bucket ` : `${what} ${counted(buckets.length, "bucket")}: `, ...chips(buckets)];
}

/** Scanned items, time beside exhaustive search's, and how far the two agree. */
function figures(answer, found, item) {
  const fewer = found.scanned ? ` (${rounded(answer.items / found.scanned)} times fewer)` : "";
  const made = [figure("Scanned", `${count(found.scanned)} of ${count(answer.items)}`, `items${fewer}`)];
  const whole = answer.exhaustive;
  const time = whole ? `exhaustive ${rounded(whole.milliseconds)}\u00a0ms${longer(answer.milliseconds, whole.milliseconds)}` : "";
  made.push(figure("Time", `${rounded(answer.milliseconds)}\u00a0ms`, time));
  if (whole) {
    const best = whole.answers[0].ids.map(String).filter((id) => id !== String(item?.id ?? ""));
    const own = new Set(found.hits.map((hit) => String(hit.id)));
    const same = best.filter((id) => own.has(id)).length;
    made.push(figure("Same hits", `${same} of ${best.length}`, "nearest of exhaustive search"));
  }
  const classes = leading(found.hits);
  if (item !== null && item.label !== null && found.hits.length) {
    const right = found.hits.filter((hit) => hit.label === item.label).length;
    made.push(figure("Same class", `${right} of ${found.hits.length}`, `hits are ${item.label}`));
  } else if (classes !== null) {
    made.push(figure("Most hits are", classes.label, `${classes.hits} of ${found.hits.length} (${percent(classes.hits / found.hits.length)})`));
  }
  return made;
}

function longer(own, whole) {
  const times = whole / own;
  return times >= 1.05 ? ` (${rounded(times)} times longer)` : "";
}

/** The class that most hits have. */
function leading(hits) {
  const tally = new Map();
  for (const { label } of hits) if (label !== null) tally.set(label, (tally.get(label) ?? 0) + 1);
  const [most] = [...tally].sort((left, right) => right[1] - left[1]);
  return most === undefined ? null : { label: most[0], hits: most[1] };
}

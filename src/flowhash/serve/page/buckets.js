// The bucket browser: how full all buckets are, and what lives in one.

import { request } from "./api.js";
import { busy, byId, card, count, counted, drawn, element, figure, percent, problem, rounded, say } from "./dom.js";

const SAMPLE = 24;
const CLASSES = 10; // shown before "show all"
const PAGE = 10; // buckets that Page Up and Page Down pass over
const WAIT = 120; // milliseconds without a further arrow key before a bucket is asked for

let site, loads = null, places = [], order = [], chosen = null, seed = 0, running = null, timer;

export function setUp(given) {
  site = given;
  byId("bucket-number").max = site.stats.buckets - 1;
  byId("pick").addEventListener("submit", (event) => {
    event.preventDefault();
    go(Number(byId("bucket-number").value));
  });
  byId("previous").addEventListener("click", () => go(beside(-1)));
  byId("next").addEventListener("click", () => go(beside(1)));
  byId("bucket-order").addEventListener("change", () => go(chosen, true));
  byId("other-members").addEventListener("click", () => {
    seed += 1;
    load(chosen, false);
  });
  const chart = byId("chart");
  chart.addEventListener("click", (event) => {
    chart.focus();
    go(order[placeAt(event)]);
  });
  chart.addEventListener("pointermove", (event) => point(order[placeAt(event)]));
  chart.addEventListener("pointerleave", () => point(null));
  chart.addEventListener("keydown", pressed);
}

function go(bucket, replace = false) {
  const sorted = byId("bucket-order").value === "load" ? { order: "load" } : {};
  site.go("buckets", { bucket: String(bucket), ...sorted }, replace);
}

/** The bucket so many places away in the order shown; the ends meet. */
function beside(step) {
  return order[(places[chosen] + step + order.length) % order.length];
}

function pressed(event) {
  const last = order.length - 1;
  const place = places[chosen];
  const targets = {
    ArrowLeft: place - 1, ArrowDown: place - 1, ArrowRight: place + 1, ArrowUp: place + 1,
    PageDown: place - PAGE, PageUp: place + PAGE, Home: 0, End: last,
  };
  if (!(event.key in targets) || event.altKey || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  choose(order[Math.min(last, Math.max(0, targets[event.key]))]);
  clearTimeout(timer);
  timer = setTimeout(() => go(chosen, true), WAIT);
}

/** Show what the fragment asks for. */
export async function show(values, first) {
  clearTimeout(timer);
  byId("bucket-order").value = values.get("order") === "load" ? "load" : "number";
  try {
    if (loads === null) loads = (await busy(request("buckets"))).loads;
    draw();
    const text = values.get("bucket") ?? String(fullest());
    const wanted = /^[0-9]{1,9}$/.test(text) ? Number(text) : -1;
    if (!(wanted in loads)) throw new Error(`There is no bucket ${values.get("bucket")}; expected 0 to ${loads.length - 1}.`);
    if (wanted !== chosen) seed = 0;
    choose(wanted);
    await load(wanted, !first);
  } catch (error) {
    problem(error);
  }
}

/** Read the loads again when they are next shown, since the table has changed. */
export function changed() {
  loads = null;
}

const fullest = () => loads.indexOf(loads.reduce((left, right) => Math.max(left, right), 0));

/** One path for all bars: a drawing of ten thousand buckets is one element. */
function draw() {
  order = loads.map((_load, bucket) => bucket);
  if (byId("bucket-order").value === "load") order.sort((left, right) => loads[right] - loads[left] || left - right);
  places = [];
  order.forEach((bucket, place) => { places[bucket] = place; });
  const total = loads.reduce((sum, load) => sum + load, 0);
  const most = Math.max(1, loads[fullest()]);
  const mean = total / loads.length;
  const bars = order.map((bucket, place) => `M${place + 0.1} ${most}v${-loads[bucket]}h.8v${loads[bucket]}z`).join("");
  byId("chart").replaceChildren(drawn(
    "svg", { viewBox: `0 0 ${loads.length} ${most}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    drawn("rect", { id: "column", class: "column", y: 0, width: 1, height: most }),
    drawn("path", { class: "all", d: bars }),
    drawn("rect", { id: "one", class: "one", width: 1 }),
    drawn("path", { class: "mean", d: `M0 ${most - mean}H${loads.length}` }),
  ));
  byId("load-most").textContent = `${counted(most, "item")}`;
  byId("axis-first").textContent = byId("bucket-order").value === "load" ? "fullest" : "bucket 0";
  byId("axis-last").textContent = byId("bucket-order").value === "load" ? "emptiest" : `bucket ${loads.length - 1}`;
  const empty = loads.filter((load) => load === 0).length;
  byId("loads-about").textContent =
    `${counted(loads.length, "bucket")}, ${rounded(mean)} items in each on average, ${count(loads[fullest()])} in the fullest, ${count(empty)} empty.`;
  byId("chart").setAttribute("aria-valuemin", 0);
  byId("chart").setAttribute("aria-valuemax", loads.length - 1);
}

/** Mark a bucket in the chart and in the fields. */
function choose(bucket) {
  chosen = bucket;
  const place = places[bucket];
  const most = byId("column").height.baseVal.value;
  byId("column").setAttribute("x", place);
  byId("one").setAttribute("x", place);
  byId("one").setAttribute("y", most - loads[bucket]);
  byId("one").setAttribute("height", loads[bucket]);
  byId("bucket-number").value = bucket;
  byId("chart").setAttribute("aria-valuenow", bucket);
  byId("chart").setAttribute("aria-valuetext", `bucket ${bucket}, ${counted(loads[bucket], "item")}`);
  point(null);
}

function placeAt(event) {
  const box = byId("chart").getBoundingClientRect();
  const place = Math.floor(((event.clientX - box.left) / box.width) * order.length);
  return Math.min(order.length - 1, Math.max(0, place));
}

/** Say which bucket the pointer is at, or else which is chosen. */
function point(bucket) {
  const one = bucket ?? chosen;
  if (one !== null && loads !== null) byId("pointed").textContent = `bucket ${one}: ${counted(loads[one], "item")}`;
}

async function load(bucket, focus) {
  running?.abort();
  running = new AbortController();
  const article = byId("bucket");
  article.setAttribute("aria-busy", "true");
  try {
    const found = await busy(request(`buckets/${bucket}?count=${SAMPLE}&seed=${seed}`, { signal: running.signal }));
    article.hidden = false;
    render(found);
    // From a link elsewhere: what had the focus is hidden now.
    if (focus && !byId("buckets").contains(document.activeElement)) byId("bucket-title").focus();
  } catch (error) {
    if (error.name === "AbortError") return;
    problem(error);
  }
  article.removeAttribute("aria-busy");
}

function render(found) {
  site.title(`Bucket ${found.bucket}`);
  byId("bucket-title").textContent = `Bucket ${found.bucket}`;
  const total = site.stats.items;
  const share = total ? `of ${count(total)} (${percent(found.load / total)})` : "";
  const made = [figure("Load", counted(found.load, "item"), share)];
  const { classes } = found;
  if (found.purity !== null && classes.length) {
    made.push(figure("Purity", percent(found.purity), `are ${classes[0].label}, its largest class`));
    made.push(figure("Classes", count(classes.length), classes.length === 1 ? "lives here" : "live here"));
  } else {
    made.push(figure("Purity", "–", found.load ? "its items have no class" : "nothing is here"));
  }
  byId("bucket-figures").replaceChildren(...made);
  renderClasses(classes, found.counted);
  byId("classes-about").hidden = found.counted >= found.load;
  byId("classes-about").textContent = `Counted in a sample of ${counted(found.counted, "item")}.`;
  byId("members").replaceChildren(...found.items.map((item) => card(item, site.itemLink(item.id))));
  byId("other-members").hidden = found.load <= found.items.length;
  say(`Bucket ${found.bucket}, ${counted(found.load, "item")}`);
}

function renderClasses(classes, total) {
  const line = ({ label, items }) => {
    const bar = element("span", { class: "bar-fill" });
    bar.style.setProperty("inline-size", `${(100 * items) / total}%`);
    return element(
      "li", {},
      element("span", { class: "bar-name" }, label),
      element("span", { class: "bar-track" }, bar),
      element("span", { class: "bar-count" }, count(items)),
    );
  };
  const list = byId("classes");
  const all = byId("all-classes");
  list.replaceChildren(...classes.slice(0, CLASSES).map(line));
  if (!classes.length) list.append(element("li", { class: "hint" }, "None."));
  all.hidden = classes.length <= CLASSES;
  all.textContent = `Show all ${classes.length} classes`;
  all.onclick = () => {
    list.append(...classes.slice(CLASSES).map(line));
    list.children[CLASSES].tabIndex = -1;
    list.children[CLASSES].focus();
    all.hidden = true;
  };
}

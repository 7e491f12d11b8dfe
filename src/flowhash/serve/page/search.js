// The search view: by image, by vector, by stored item.

import { itemPath, post, request, withId } from "./api.js";
import { busy, byId, card, count, counted, element, numbers, percent, problem, rounded, say, settled, titleOf } from "./dom.js";
import { render } from "./hits.js";

const SAMPLE = 24;

const images = new Map(); // what was dropped, picked or pasted: a link cannot carry it
let site, running = null, seed = 0, sampled = false;

export function setUp(given) {
  site = given;
  byId("drop").hidden = site.kind !== "images";
  byId("vector-form").hidden = site.kind === "images";
  byId("order-field").hidden = site.kind !== null;
  if (site.kind === null) byId("vector-label").textContent = "Embedding";
  const size = site.inputDim ? `${site.inputDim} numbers` : "Numbers";
  byId("vector-hint").textContent = `${size}, as JSON or separated by commas.`;
  byId("top").max = site.limits.max_top;
  byId("probe").max = site.stats.buckets;
  for (const recall of new Set((site.stats.recall?.expected ?? []).map((cost) => cost.recall))) offerRecall(String(recall));
  byId("probe").value = site.stats.active; // links of other views are made before this one is shown
  byId("file").addEventListener("change", (event) => {
    if (event.target.files.length) byImage(event.target.files);
    event.target.value = ""; // so that the same file can be chosen again
  });
  byId("vector-form").addEventListener("submit", (event) => submitted(event, byVector));
  byId("id-form").addEventListener("submit", (event) => submitted(event, () => ask({ id: byId("id").value.trim() })));
  byId("controls").addEventListener("submit", (event) => submitted(event, again));
  byId("controls").addEventListener("change", again);
  byId("others").addEventListener("click", () => {
    seed += 1;
    loadSample();
  });
}

function submitted(event, act) {
  event.preventDefault();
  settled();
  try {
    act();
  } catch (error) {
    problem(error);
  }
}

/** Search by the first of some files. */
export function byImage(files) {
  const file = files[0];
  const largest = site.limits.max_body;
  if (site.kind !== "images") {
    problem(new Error("This table cannot be searched by image: its server has no encoder for images."));
  } else if (largest && file.size > largest) {
    problem(new Error(`${file.name} has ${count(file.size)} bytes; this server takes up to ${count(largest)}. Make the image smaller.`));
  } else {
    const key = String(images.size + 1);
    images.set(key, file);
    ask({ image: key });
  }
}

function byVector() {
  const what = site.kind === null ? "Embedding" : "Vector";
  const values = { [what.toLowerCase()]: numbers(byId("vector").value, what).join(",") };
  if (site.kind === null) values.buckets = numbers(byId("order").value, "Buckets to open").join(",");
  ask(values);
}

/** How to search, as far as it is not the default: part of every link. */
function manner() {
  const values = {};
  const usual = { top: "16", probe: String(site.stats.active) };
  for (const [name, value] of Object.entries(usual)) {
    if (byId(name).value !== value && byId(name).checkValidity()) values[name] = byId(name).value;
  }
  if (byId("recall").value) values.recall = byId("recall").value;
  if (!byId("compare").checked) values.compare = "no";
  return values;
}

function ask(query) {
  site.go("search", { ...query, ...fitting(manner(), "id" in query) });
}

export const linkTo = (id) => site.link("search", { id: String(id), ...fitting(manner(), true) });

/** A stored item is known to be in k buckets, and of no other is known how near it is. */
function fitting({ probe, recall, ...rest }, stored) {
  if (recall !== undefined && whyNoRecall(stored, Number(rest.top ?? 16)) === "") return { recall, ...rest };
  return probe === undefined || (stored && Number(probe) > site.stats.active) ? rest : { probe, ...rest };
}

/** Why no recall can be asked for; nothing where it can. */
function whyNoRecall(stored, top) {
  const known = site.stats.recall;
  if (site.kind === null) return "A recall cannot be asked for here: this server has no encoder.";
  if (known === null) return "A recall cannot be asked for: this table was never calibrated. The command flowhash calibrate does it.";
  if (stored && !site.takesStored) return "A recall cannot be asked for by a stored item: this encoder needs the item itself.";
  const most = Math.max(...known.tops);
  return top > most ? `A recall can be asked for up to ${counted(most, "hit")}: so it was calibrated.` : "";
}

/** What the chosen recall opens and scans. */
function aboutRecall(recall, top) {
  const { expected, old } = site.stats.recall;
  const costs = expected.filter((cost) => cost.top >= top && cost.recall === Number(recall));
  const aged = old ? " The table has changed much since it was calibrated: the recall may not be reached." : "";
  if (!costs.length) return `Opens as many buckets as it takes.${aged}`;
  const { opened, scanned } = costs.reduce((best, cost) => (cost.top < best.top ? cost : best));
  return `On average opens ${rounded(opened)} of ${counted(site.stats.buckets, "bucket")} and scans ${percent(scanned)} of the items.${aged}`;
}

function offerRecall(recall) {
  byId("recall").append(element("option", { value: recall }, percent(Number(recall))));
}

/** Show the recall of a link, whether it can be asked for, and what it takes. */
function showRecall(values) {
  const field = byId("recall");
  const recall = share(values.get("recall"));
  if (recall !== null && ![...field.options].some((option) => option.value === recall)) offerRecall(recall);
  field.value = recall ?? "";
  const top = Number(whole(values.get("top")) ?? 16);
  const why = whyNoRecall(values.has("id"), top);
  field.disabled = why !== "" && recall === null;
  if (recall !== null) {
    byId("probe").disabled = true; // the recall decides how many
    byId("probe-hint").hidden = true;
  }
  byId("recall-hint").textContent = why || (recall === null ? "" : aboutRecall(recall, top));
  byId("recall-hint").hidden = byId("recall-hint").textContent === "";
}

function again() {
  if (!byId("controls").reportValidity()) return;
  const { top, probe, recall, compare, ...query } = Object.fromEntries(site.values());
  ask(query);
}

/** Show what the fragment asks for. */
export function show(values, first) {
  byId("top").value = whole(values.get("top")) ?? "16";
  byId("probe").value = whole(values.get("probe")) ?? site.stats.active;
  byId("compare").checked = values.get("compare") !== "no";
  limitProbe(values);
  showRecall(values);
  byId("id").value = values.get("id") ?? "";
  const vector = values.get("vector") ?? values.get("embedding");
  if (vector !== null) byId("vector").value = vector;
  if (values.has("buckets")) byId("order").value = values.get("buckets");
  running?.abort();
  if (["id", "image", "vector", "embedding"].some((name) => values.has(name))) {
    run(values, first);
  } else {
    byId("results").hidden = true;
    site.title("Search");
  }
  if (!sampled) loadSample();
}

/** How many buckets may be opened depends on what is searched by. */
function limitProbe(values) {
  const stored = values.has("id");
  const most = stored ? site.stats.active : site.stats.buckets;
  byId("probe").max = most;
  byId("probe").disabled = most === 1;
  byId("probe-field").hidden = site.kind === null && !stored; // then the field with the buckets says it
  byId("probe-hint").hidden = !stored;
  byId("probe-hint").textContent = most === 1 ? "A stored item opens its own bucket." : `A stored item opens its own ${most} buckets at most.`;
}

/** Drop the sample, since the table has changed. */
export function changed() {
  sampled = false;
}

async function run(values, first) {
  running = new AbortController();
  const { signal } = running;
  const results = byId("results");
  results.setAttribute("aria-busy", "true");
  say("Searching…");
  try {
    const [asked, answer] = await busy(Promise.all([described(values, signal), answered(values, signal)]));
    results.hidden = false;
    render(site, asked, answer, Number(values.get("top") ?? 16));
    if (!first && !byId("controls").contains(document.activeElement)) byId("results-title").focus();
  } catch (error) {
    if (error.name === "AbortError") return;
    results.hidden = true;
    say("");
    problem(error);
  }
  results.removeAttribute("aria-busy");
}

/** What was asked, for people: a title, a picture, and the item if it is a stored one. */
async function described(values, signal) {
  if (values.has("id")) {
    const item = await request(itemPath(values.get("id")), { signal });
    return { title: titleOf(item), about: `Stored item, id ${item.id}`, source: item.picture, item };
  }
  if (values.has("image")) {
    const file = images.get(values.get("image"));
    if (file === undefined) throw new Error("The image of this search is not part of its link. Drop it again.");
    return { title: file.name || "image", about: "Your image", source: URL.createObjectURL(file), item: null };
  }
  const vector = listed(values, values.has("vector") ? "vector" : "embedding");
  return { title: "your vector", about: counted(vector.length, "number"), source: null, vector, item: null };
}

/** The numbers of a link, which anybody may have changed. */
const listed = (values, name) => numbers(values.get(name), `“${name}” in the link`);

const whole = (text) => (/^[0-9]{1,9}$/.test(text) ? text : null);

/** A recall as it is written first of all, such as 0.9 for 0.90; null for what is none. */
const share = (text) => (/^(0?\.[0-9]{1,6}|1)$/.test(text) && Number(text) ? String(Number(text)) : null);

function wholeNumber(values, name) {
  const text = values.get(name);
  if (whole(text) === null) throw new Error(`“${name}” in the link is “${text.slice(0, 40)}”; expected a whole number.`);
  return Number(text);
}

async function answered(values, signal) {
  const compare = values.get("compare") !== "no";
  const number = (name) => (values.has(name) ? { [name]: wholeNumber(values, name) } : {});
  const fields = { ...number("top"), ...number("probe"), compare };
  if (values.has("recall")) {
    if (share(values.get("recall")) === null) throw new Error(`“recall” in the link is “${values.get("recall").slice(0, 40)}”; expected a share such as 0.95.`);
    fields.recall = Number(values.get("recall"));
  }
  if (values.has("image")) {
    const form = new FormData();
    for (const [name, value] of Object.entries(fields)) form.set(name, value);
    const file = images.get(values.get("image"));
    if (file !== undefined) form.set("image", file, file.name || "image");
    return file === undefined ? null : request("search", { method: "POST", body: form, signal });
  }
  for (const name of ["vector", "embedding", "buckets"]) {
    if (values.has(name)) fields[name] = listed(values, name);
  }
  if (values.has("buckets")) fields.probe = fields.buckets.length;
  return post("search", withId(values.get("id"), fields, site.idKind), { signal });
}

async function loadSample() {
  sampled = true;
  const list = byId("sample");
  list.setAttribute("aria-busy", "true");
  try {
    const { total, items } = await busy(request(`items?count=${SAMPLE}&seed=${seed}`));
    list.replaceChildren(...items.map((item) => card(item, linkTo(item.id))));
    byId("others").hidden = total <= items.length;
    byId("stored-about").textContent = total ? "Choose one to search by it." : "The table is empty. Add items first.";
  } catch (error) {
    sampled = false;
    problem(error);
  }
  list.removeAttribute("aria-busy");
}

// Adding and deleting items, with the API key where the server wants one.

import { change, itemPath, post, request, withId } from "./api.js";
import { busy, byId, card, counted, element, numbers, problem, say, settled, titleOf } from "./dom.js";

let site;

export function setUp(given) {
  site = given;
  byId("read-only").hidden = site.writable;
  byId("read-only").textContent = site.whyReadOnly;
  byId("add-form").hidden = !site.writable;
  byId("add-images").hidden = site.kind !== "images";
  byId("add-vectors").hidden = site.kind === "images";
  byId("add-code-field").hidden = site.kind !== null;
  if (site.kind === null) byId("add-vector-label").textContent = "Embedding";
  const size = site.inputDim ? ` (${counted(site.inputDim, "number")})` : "";
  if (site.kind !== "images") byId("add-vector-label").textContent += size;
  byId("add-id-hint").textContent = site.idKind === "int64" ? "(a whole number; left empty, the table counts)" : "(a text; one that is there already is replaced)";
  byId("class-names").replaceChildren(...site.classNames.map((name) => element("option", { value: name })));
  byId("add-form").addEventListener("submit", add);
  byId("no-key").addEventListener("click", () => byId("ask-key").close(""));
}

export function show() {
  site.title("Add items");
}

/** Put dropped or pasted files into the form. */
export function offerFiles(files) {
  if (!site.writable || site.kind !== "images") return;
  byId("add-files").files = files;
  say(`${counted(files.length, "image")} chosen`);
  byId("add-label").focus();
}

async function add(event) {
  event.preventDefault();
  settled();
  const button = byId("add-button");
  button.disabled = true;
  try {
    const send = site.kind === "images" ? imagesToAdd() : vectorToAdd();
    const answer = await change((headers) => busy(send(headers)), askForKey);
    await site.tableChanged();
    await showAdded(answer.ids);
    byId("add-form").reset();
  } catch (error) {
    problem(error);
  }
  button.disabled = false;
}

const textOf = (id) => byId(id).value.trim();

function imagesToAdd() {
  const files = [...byId("add-files").files];
  if (!files.length) throw new Error("No image is chosen; choose one or drop it on the page.");
  if (files.length > 1 && textOf("add-id")) throw new Error("One id does not fit several images; leave it empty or add one image.");
  const form = new FormData();
  for (const file of files) form.append("image", file, file.name);
  for (const field of ["label", "id"]) if (textOf(`add-${field}`)) form.set(field, textOf(`add-${field}`));
  return (headers) => request("items", { method: "POST", headers, body: form });
}

function vectorToAdd() {
  const item = {};
  if (site.kind === null) {
    item.embedding = numbers(textOf("add-vector"), "Embedding");
    item.code = numbers(textOf("add-code"), "Its buckets");
  } else {
    item.vector = numbers(textOf("add-vector"), "Vector");
  }
  for (const field of ["label", "name"]) if (textOf(`add-${field}`)) item[field] = textOf(`add-${field}`);
  const text = `{"items":[${withId(textOf("add-id") || null, item, site.idKind)}]}`;
  return (headers) => post("items", text, { headers });
}

async function showAdded(ids) {
  const items = await busy(Promise.all(ids.slice(0, 24).map((id) => request(itemPath(id)))));
  byId("added").hidden = false;
  byId("added-title").textContent = `Added ${counted(ids.length, "item")}`;
  byId("added-items").replaceChildren(...items.map((item) => card(item, site.itemLink(item.id))));
  byId("added-title").focus();
  say(`Added ${counted(ids.length, "item")}`);
}

/** The button that deletes an item, or why there is none. */
export function offerDelete(item) {
  if (!site.writable) return element("p", { class: "hint" }, site.whyReadOnly);
  const button = element("button", { type: "button", class: "danger quiet" }, "Delete this item…");
  button.addEventListener("click", () => remove(item));
  return button;
}

async function remove(item) {
  const title = titleOf(item);
  byId("confirm-title").textContent = `Delete ${title} (id ${item.id})?`;
  if ((await closed(byId("confirm"))) !== "delete") return; // the browser gives the focus back
  try {
    const send = (headers) => request(itemPath(item.id), { method: "DELETE", headers });
    const answer = await change((headers) => busy(send(headers)), askForKey);
    await site.tableChanged();
    // The deleted item's page is replaced, so that going back does not lead there.
    site.go("search", {}, true);
    byId("stored-title").focus();
    say(`Deleted ${title}. ${counted(answer.total, "item")} left.`);
  } catch (error) {
    problem(error);
  }
}

/** The API key that somebody types, or null. */
async function askForKey(again) {
  const need = "It changes its table only for those who know the key that it was started with.";
  byId("key-about").textContent = again ? `That key is not the right one. ${need}` : need;
  const value = await closed(byId("ask-key"));
  const key = byId("key").value;
  byId("key").value = "";
  return value === "use" && key ? key : null;
}

let turn = Promise.resolve();

/** Open a dialog; its value when it is closed, empty if that was by Escape. */
function closed(dialog) {
  // A browser tells of a closed dialog a little later: one opened again must not hear the old news.
  turn = turn.then(() => new Promise((resolve) => {
    dialog.returnValue = "";
    dialog.addEventListener("close", () => resolve(dialog.returnValue), { once: true });
    dialog.showModal();
  }));
  return turn;
}

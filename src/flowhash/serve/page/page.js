// The page: which view is shown (the fragment says so), figures of the table, dropped and pasted files.

import { request } from "./api.js";
import * as buckets from "./buckets.js";
import { busy, byId, count, element, problem, rounded, settled } from "./dom.js";
import * as items from "./items.js";
import * as search from "./search.js";

const VIEWS = { search, buckets, add: items };

const site = {
  /** A fragment that shows a view. */
  link(view, values = {}) {
    const text = new URLSearchParams(values).toString();
    return text ? `#${view}?${text}` : `#${view}`;
  },
  /** What the fragment says beside the view. */
  values: () => new URLSearchParams(location.hash.split("?").slice(1).join("?")),
  go(view, values, replace = false) {
    const link = site.link(view, values);
    if (!replace && link !== location.hash) {
      location.hash = link;
      return;
    }
    history.replaceState(null, "", link);
    show();
  },
  itemLink: (id) => search.linkTo(id),
  title(text) {
    document.title = `${text} · FlowHash`;
  },
  async tableChanged() {
    search.changed();
    buckets.changed();
    await readStats();
  },
};

const currentView = () => {
  const name = location.hash.slice(1).split("?")[0];
  return Object.hasOwn(VIEWS, name) ? name : "search";
};

function show(first = false) {
  settled();
  const view = currentView();
  for (const name of Object.keys(VIEWS)) byId(name).hidden = name !== view;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.view === view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  VIEWS[view].show(site.values(), first);
  // Cards that were drawn before say how to search as it was then.
  for (const link of document.querySelectorAll("li.card[data-id] > a")) link.setAttribute("href", search.linkTo(link.parentElement.dataset.id));
}

async function readStats() {
  const stats = await busy(request("stats"));
  Object.assign(site, { stats, ...described(stats) });
  const size = site.inputSize?.join(" × ") ?? (site.inputDim ? `of ${count(site.inputDim)} numbers` : "");
  const lines = [
    ["Items", count(stats.items), ""],
    ["Buckets d", count(stats.buckets), "how many buckets there are"],
    ["Active k", count(stats.active), "how many buckets an item is in, at the most"],
    ["Dimensions", count(stats.dim), "numbers in an embedding, which hits are ranked by"],
    ["SUF", `${rounded(stats.suf)} measured, ${rounded(stats.expected_suf)} expected`, "speed-up factor: items in the table by items scanned; expected of codes that spread evenly"],
    ["Encoder", site.kind === null ? "none" : `${site.kind} ${size}`, site.fingerprint ?? ""],
  ];
  byId("stats").replaceChildren(...lines.map(([name, value, title]) => line(name, value, title)));
  byId("version").textContent = `FlowHash ${stats.version ?? ""}`;
}

function line(name, value, title) {
  return element("div", title ? { title } : {}, element("dt", {}, name), element("dd", {}, value));
}

/** What the views need of the figures. */
function described(stats) {
  const takes = stats.takes; // null where there is no encoder: then the table's own embeddings are asked for
  return {
    kind: takes?.kind ?? null,
    inputSize: takes?.size ?? null,
    inputDim: takes === null ? stats.dim : takes.inputs,
    classNames: takes?.class_names ?? [],
    takesStored: takes?.stored ?? false,
    fingerprint: stats.encoder,
    idKind: stats.ids,
    limits: stats.limits,
    writable: stats.writable,
    whyReadOnly: "This server only reads its table: items can be neither added nor deleted here.",
  };
}

// Files that come from outside ----------------------------------------------------------------

function received(files) {
  if (currentView() === "add") items.offerFiles(files);
  else search.byImage(files);
}

const hasFiles = (transfer) => transfer !== null && [...transfer.types].includes("Files");

function listenForFiles() {
  const veil = byId("veil");
  document.addEventListener("dragover", (event) => {
    if (!hasFiles(event.dataTransfer)) return;
    event.preventDefault();
    event.dataTransfer.dropEffect = "copy";
    veil.firstElementChild.textContent = currentView() === "add" ? "Drop the images to add them" : "Drop the image to search by it";
    veil.hidden = false;
  });
  document.addEventListener("dragleave", (event) => {
    if (event.relatedTarget === null) veil.hidden = true;
  });
  document.addEventListener("drop", (event) => {
    veil.hidden = true;
    if (!hasFiles(event.dataTransfer)) return;
    event.preventDefault();
    if (event.dataTransfer.files.length) received(event.dataTransfer.files);
  });
  document.addEventListener("paste", (event) => {
    if (!event.clipboardData?.files.length) return; // text goes into the field that has the focus
    event.preventDefault();
    received(event.clipboardData.files);
  });
}

async function start() {
  byId("skip").addEventListener("click", (event) => {
    event.preventDefault(); // the fragment is the state of the page
    byId("content").focus();
  });
  try {
    await readStats();
  } catch (error) {
    problem(error);
    return;
  }
  for (const view of Object.values(VIEWS)) view.setUp(site);
  listenForFiles();
  window.addEventListener("hashchange", () => show());
  show(true);
  document.documentElement.dataset.ready = "yes";
}

start();

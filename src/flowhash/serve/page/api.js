// What the server says, and what is said to it. Paths are relative, so that the page also works
// behind a proxy that puts it below some other path.

const KEY = "flowhash-key";

/** An answer that is not the one asked for: its message is meant for people. */
export class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** This browser would change the digits of an id, and so name another item. */
class Inexact extends Error {
  constructor() {
    super("The answer has a number that this browser cannot hold exactly. Use a newer browser to see these items.");
  }
}

/** Ids may be larger than what a JavaScript number holds: such numbers stay text. */
function parsed(text) {
  return JSON.parse(text, (_key, value, context) => {
    const exact = typeof value !== "number" || !Number.isInteger(value) || Number.isSafeInteger(value);
    if (exact) return value;
    if (context?.source === undefined) throw new Inexact();
    return /^-?\d+$/.test(context.source) ? context.source : value;
  });
}

/** Ask the server; the parsed answer, or a Refusal. */
export async function request(path, options = {}) {
  let answer, text;
  try {
    answer = await fetch(path, { cache: "no-store", ...options });
    text = await answer.text();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(0, "The server does not answer. Is it still running?");
  }
  let content = null;
  try {
    content = parsed(text);
  } catch (error) {
    if (error instanceof Inexact) throw error;
    throw new Refusal(answer.status, `The server answered ${answer.status} with something that is not JSON.`);
  }
  if (answer.ok) return content;
  const message = content?.error?.message;
  throw new Refusal(answer.status, message ?? `The server answered ${answer.status}.`);
}

/** Send a JSON text. */
export function post(path, text, options = {}) {
  const headers = { "Content-Type": "application/json", ...options.headers };
  return request(path, { ...options, method: "POST", headers, body: text });
}

/** Fields as a JSON text, with the id as the table has it: a whole number or a string. */
export function withId(id, fields, idKind) {
  const text = JSON.stringify(fields);
  if (id === null) return text;
  const value = idKind === "int64" && /^-?\d+$/.test(id) ? id.replace(/^(-?)0+(?=\d)/, "$1") : JSON.stringify(id);
  return text === "{}" ? `{"id":${value}}` : `{"id":${value},${text.slice(1)}`;
}

/** The path of an item, whose id may have slashes and any other sign. */
export const itemPath = (id) => `items/${encodeURIComponent(id)}`;

/** Do something that changes the table; ask for the key where the server wants one. */
export async function change(send, askForKey) {
  for (let attempt = 0; ; attempt += 1) {
    const key = stored();
    try {
      return await send(key === null ? {} : { "X-API-Key": key });
    } catch (error) {
      if (error.status !== 401) throw error;
      const given = await askForKey(key !== null && attempt > 0);
      if (given === null) throw error;
      store(given);
    }
  }
}

// A browser may forbid storage: then the key is asked for and lasts as long as the page.
let remembered = null;

function stored() {
  try {
    return sessionStorage.getItem(KEY) ?? remembered;
  } catch {
    return remembered;
  }
}

function store(key) {
  remembered = key;
  try {
    sessionStorage.setItem(KEY, key);
  } catch {
    // remembered is enough
  }
}

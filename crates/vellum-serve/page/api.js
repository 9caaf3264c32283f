// Questions to the server. The token comes in the address behind "#", which no browser sends, and stays in this tab.

const KEY = "vellum-token";

/** Takes the token out of the address, so that it is in no history and no screenshot. */
export function takeToken() {
  const found = /^#token=([0-9a-f]{64})$/.exec(location.hash);
  if (found) {
    sessionStorage.setItem(KEY, found[1]);
    history.replaceState(null, "", location.pathname + "#/history");
  }
  return sessionStorage.getItem(KEY) !== null;
}

/** A question that could not be answered. */
export class ApiError extends Error {
  constructor(status, code, message, hint = undefined) {
    super(message);
    this.status = status;
    this.code = code;
    this.hint = hint;
  }
}

async function request(path, options = {}) {
  const headers = { Authorization: `Bearer ${sessionStorage.getItem(KEY)}`, ...options.headers };
  let response;
  try {
    response = await fetch(`/api/v1/${path}`, { ...options, headers, credentials: "omit", redirect: "error" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "io", "The connection is lost: 'vellum web' may have ended. Start it again, and open its new address.");
  }
  if (response.ok) return response;
  const failure = await response.json().catch(() => null);
  if (response.status === 401) {
    throw new ApiError(401, "denied", "This address is of an earlier 'vellum web'. Open the one that it printed last.");
  }
  throw new ApiError(response.status, failure?.error.code ?? "io", failure?.error.message ?? response.statusText, failure?.error.hint);
}

/** Parameters as a query; what is empty is left out. */
export function query(parameters) {
  const fields = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return fields.map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join("&");
}

/** An answer in JSON. */
export async function ask(path, parameters = {}, signal = undefined) {
  const fields = query(parameters);
  const response = await request(fields ? `${path}?${fields}` : path, { signal });
  return response.json();
}

/** Asks for something to be planned or done. The body is JSON, which no form of another site can send. */
export async function post(path, body = {}, signal = undefined) {
  const headers = { "Content-Type": "application/json" };
  const response = await request(path, { method: "POST", body: JSON.stringify(body), headers, signal });
  return response.json();
}

/**
 * Tells of events until the server ends their stream. Read by `fetch`: an EventSource cannot show the token.
 * @param {(kind: string, value: any) => void} tell
 */
export async function listen(parameters, signal, tell) {
  const response = await request(`events?${query(parameters)}`, { signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      // Others are comments, which only show that the connection is alive.
      const [, kind, data] = /^event: (\w+)\ndata: (.*)$/.exec(event) ?? [];
      if (kind) tell(kind, JSON.parse(data));
    }
  }
}

/** The parameters that name a path: bytes that are no text go as hexadecimal digits. */
export function pathFields(name) {
  return name.path_hex ? { path_hex: name.path_hex } : { path: name.path };
}

/** The first bytes of a file, at most `limit`. */
export async function readContent(id, name, limit, signal) {
  const fields = query(pathFields(name));
  const headers = limit === undefined ? {} : { Range: `bytes=0-${limit - 1}` };
  try {
    const response = await request(`content/${id}?${fields}`, { headers, signal });
    return new Uint8Array(await response.arrayBuffer());
  } catch (error) {
    // An empty file has no part.
    if (error.status === 416) return new Uint8Array();
    throw error;
  }
}

/** Lets the browser download a file: a link cannot show the token, so it has a ticket in it. */
export async function download(id, name) {
  const { ticket } = await post("tickets", { snapshot: id, ...pathFields(name) });
  const last = name.path.split("/").pop();
  const anchor = document.createElement("a");
  anchor.href = `/d/${ticket}/${encodeURIComponent(last)}`;
  anchor.download = last;
  anchor.click();
}

// Client of the public API: requests with the token, and streaming responses line by line.

export class Problem extends Error {
  constructor(status, body) {
    super(body.message ?? body.detail ?? body.title ?? `HTTP ${status}`);
    this.status = status;
    this.code = body.code ?? "";
    this.hint = body.hint ?? "";
    this.line = body.line ?? 0;
  }
}

let token = sessionStorage.getItem("mandor.token") ?? "";

export function use(other) {
  token = other;
  if (other) sessionStorage.setItem("mandor.token", other);
  else sessionStorage.removeItem("mandor.token");
}

async function send(path, options = {}) {
  const headers = { ...(options.headers ?? {}) };
  if (token) headers.authorization = `Bearer ${token}`;
  const answer = await fetch(path, { ...options, headers, cache: "no-store" });
  if (!answer.ok) throw new Problem(answer.status, await answer.json().catch(() => ({})));
  return answer;
}

export const get = async (path) => (await send(path)).json();

export const patch = async (path, change) =>
  (await send(path, { method: "PATCH", body: JSON.stringify(change), headers: { "content-type": "application/merge-patch+json" } })).json();

export const post = async (path, body, type = "application/json") =>
  (await send(path, { method: "POST", body: typeof body === "string" ? body : JSON.stringify(body), headers: { "content-type": type } })).json();

// Calls `line` with each line until the response ends or the signal aborts it.
export async function lines(path, line, { signal, accept, body, type } = {}) {
  const headers = { ...(accept ? { accept } : {}), ...(type ? { "content-type": type } : {}) };
  const answer = await send(path, { signal, headers, body, method: body === undefined ? "GET" : "POST" });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    for (const part of parts) if (part) line(part);
  }
  if (rest) line(rest);
}

// A browser cannot set headers of a WebSocket: the token is sent as a subprotocol.
export function socket(path) {
  const found = new WebSocket(new URL(path, location.href.replace(/^http/, "ws")), ["mandor.exec", ...(token ? [`mandor.token.${token}`] : [])]);
  found.binaryType = "arraybuffer";
  return found;
}

export const query = (values) => new URLSearchParams(Object.entries(values).filter(([, value]) => value !== "" && value !== undefined));

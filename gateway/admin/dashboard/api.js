// Calls to the admin API of the gateway that served this page.

// Joined as text: `policy:check` alone would be read as an address of its own.
const BASE = new URL("admin/v1/", document.baseURI).href;
const KEY = "headrace-token";
const TIMEOUT_MS = 8000;

/** The gateway answered that it did not do it. `data` is the whole answer. */
export class ApiError extends Error {
  constructor(status, data) {
    super(data?.error?.message ?? `the gateway answered ${status}`);
    this.status = status;
    this.code = data?.error?.code ?? "";
    this.data = data ?? {};
  }
}

/** There was no answer. */
export class LostError extends Error {}

export const link = {
  answeredAt: 0, // performance.now() of the last answer
  lostSince: null,
};

export function token() {
  return sessionStorage.getItem(KEY);
}

export function setToken(value) {
  if (value === null) sessionStorage.removeItem(KEY);
  else sessionStorage.setItem(KEY, value);
}

function headersOf(more, given = token()) {
  return given === null ? more : { ...more, Authorization: `Bearer ${given}` };
}

/**
 * One call: {status, data, etag}. `body` is text, or a value that is sent as JSON.
 * Throws ApiError for what the gateway refuses, LostError when it does not answer.
 */
export async function call(method, path, options = {}) {
  const { body, headers = {}, signal, timeout = TIMEOUT_MS, as } = options;
  const sent = { Accept: "application/json", ...headers };
  let payload = body;
  if (body !== undefined && typeof body !== "string") {
    payload = JSON.stringify(body);
    sent["Content-Type"] = "application/json";
  }
  const limit = AbortSignal.timeout(timeout);
  let answer;
  let data;
  try {
    answer = await fetch(BASE + path, {
      method,
      body: payload,
      headers: headersOf(sent, as),
      signal: signal ? AbortSignal.any([signal, limit]) : limit,
      cache: "no-store",
      redirect: "error",
    });
    const kind = answer.headers.get("Content-Type") ?? "";
    data = kind.includes("json") ? await answer.json() : await answer.text();
  } catch (error) {
    if (signal?.aborted) throw error; // the caller wants no answer any more
    if (link.lostSince === null) link.lostSince = performance.now();
    throw new LostError(limit.aborted ? "no answer in time" : "no connection");
  }
  link.answeredAt = performance.now();
  link.lostSince = null;
  if (!answer.ok) throw new ApiError(answer.status, data);
  return { status: answer.status, data, etag: answer.headers.get("ETag") ?? "" };
}

export async function get(path, options) {
  return (await call("GET", path, options)).data;
}

export async function post(path, body, options = {}) {
  return (await call("POST", path, { ...options, body })).data;
}

/** Follow the gateway's events until `signal` says stop; `tell(kind, value)`. Throws as `call` when it ends. */
export async function follow(types, tell, signal) {
  let answer;
  try {
    answer = await fetch(`${BASE}events?types=${types}`, { headers: headersOf({}), signal, cache: "no-store" });
  } catch (error) {
    if (signal.aborted) return;
    throw new LostError("no connection");
  }
  if (!answer.ok) throw new ApiError(answer.status, await answer.json().catch(() => null));
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      for (const event of events) {
        const kind = /^event: (.*)$/m.exec(event)?.[1];
        const data = /^data: (.*)$/m.exec(event)?.[1];
        if (kind !== undefined && data !== undefined) tell(kind, JSON.parse(data));
      }
    }
  } catch (error) {
    if (signal.aborted) return;
    throw new LostError("the stream of events broke off");
  }
  if (!signal.aborted) throw new LostError("the stream of events ended");
}

// The live tail of requests, and why one of them went where it did.

import { ApiError, LostError, follow, get } from "./api.js";
import { h, meter, setAttribute, setHidden, setText, syncList, table } from "./dom.js";
import { clockTime, count, plural, seconds } from "./format.js";

const MAX_ROWS = 200;
const MAX_PAUSE_MS = 5000;

const FAULTS = new Set(["upstream_error", "internal", "timeout"]);
const CELLS = ["", "", "", "", "", "", "number", "number", "number"];

function why(request) {
  return request.reason ? `${request.outcome}: ${request.reason}` : request.outcome;
}

export function requestsView(app) {
  const filter = h("input", { type: "search", id: "tail-filter", placeholder: "id, tenant, worker, outcome", autocomplete: "off" });
  const pause = h("button", { type: "button", text: "Pause", "aria-pressed": "false" });
  const state = h("p", { class: "hint", role: "status", text: "" });
  const wanted = h("input", { id: "explain-id", placeholder: "X-Request-Id", autocomplete: "off", spellcheck: "false" });
  const tools = h(
    "div",
    { class: "tools-row" },
    h("label", { for: "tail-filter", text: "Filter" }),
    filter,
    pause,
    state,
  );
  const ask = h("form", { class: "tools-row" }, h("label", { for: "explain-id", text: "Explain request" }), wanted, h("button", { type: "submit", text: "Explain" }));
  const tail = table("Requests that ended, the newest first", "Ended", "Request", "Outcome", "Class", "Tenant", "Pool, worker", "#TTFT", "#Took", "#Tokens");
  const none = h("p", { class: "hint", text: "No request has ended since this view was opened." });
  const story = h("section", { class: "card story", "aria-labelledby": "story-title", hidden: true });
  const element = h("div", {}, ask, story, tools, tail.element, none);
  let rows = [];
  let arrived = []; // since the last frame
  let paused = false;
  let missed = 0;
  let frame = null;
  let stop = null;

  function makeRow({ request, at }) {
    const open = h("button", { type: "button", class: "plain mono", text: request.request_id, "aria-label": `Explain ${request.request_id}` });
    open.addEventListener("click", () => void explain(request.request_id));
    const parts = CELLS.map((kind) => h("td", { class: kind || null }));
    const prompt = request.prompt_tokens === null ? `~${count(request.prompt_estimate)}` : count(request.prompt_tokens);
    const tokens = `${prompt} → ${count(request.output_tokens)}`;
    const place = request.worker ? `${request.pool}, ${request.worker}` : request.pool || "–";
    const words = [at, null, why(request), request.class_name || "–", request.tenant || "–", place, seconds(request.ttft_s), seconds(request.duration_s), tokens];
    words.forEach((text, number) => (text === null ? parts[number].append(open) : setText(parts[number], text)));
    setAttribute(parts[2], "data-outcome", request.outcome === "ok" ? "ok" : FAULTS.has(request.outcome) ? "fault" : "refused");
    return { element: h("tr", {}, ...parts), update() {} };
  }

  function fits({ request }) {
    const asked = filter.value.trim().toLowerCase();
    if (!asked) return true;
    const words = [request.request_id, request.tenant, request.worker, request.pool, request.class_name, why(request), request.model];
    return words.some((word) => (word ?? "").toLowerCase().includes(asked));
  }

  function draw() {
    frame = null;
    if (!paused && arrived.length) {
      rows = [...arrived.reverse(), ...rows].slice(0, MAX_ROWS);
      arrived = [];
    }
    const shown = rows.filter(fits);
    syncList(tail.body, shown, (row) => row.request.request_id, makeRow);
    setHidden(tail.element, shown.length === 0);
    setHidden(none, shown.length > 0);
    setText(none, rows.length ? "None of the last requests fits the filter." : "No request has ended since this view was opened.");
    if (paused && arrived.length) setText(state, `Paused, ${plural(arrived.length + missed, "request")} since.`);
  }

  function redraw() {
    frame ??= requestAnimationFrame(draw);
  }

  function take(kind, value) {
    if (kind === "dropped") return setText(state, `${plural(value, "request")} came faster than this page could show.`);
    if (kind !== "request") return undefined;
    arrived.push({ request: value, at: clockTime() });
    if (arrived.length > MAX_ROWS) {
      arrived.shift();
      missed += 1;
    }
    return redraw();
  }

  async function listen(signal) {
    let failures = 0;
    while (!signal.aborted) {
      try {
        setText(state, "Following.");
        await follow("request", (kind, value) => {
          failures = 0;
          take(kind, value);
        }, signal);
      } catch (error) {
        if (error instanceof ApiError) setText(state, `Not following: ${error.message}`);
        else if (error instanceof LostError) setText(state, "Not following: the gateway does not answer.");
        else throw error;
        failures += 1;
        await new Promise((resolve) => setTimeout(resolve, Math.min(500 * failures, MAX_PAUSE_MS)));
      }
    }
  }

  async function explain(id) {
    wanted.value = id;
    const found = await app.act("To explain", () => get(`requests/${encodeURIComponent(id)}`));
    if (found === null) return;
    const title = h("h2", { id: "story-title", tabindex: -1, text: `Why ${id} went where it went` });
    const close = h("button", { type: "button", text: "Close" });
    close.addEventListener("click", () => {
      story.hidden = true;
      wanted.focus();
    });
    story.replaceChildren(title, ...tell(found), h("div", { class: "row end" }, close));
    story.hidden = false;
    title.focus();
  }

  filter.addEventListener("input", redraw);
  pause.addEventListener("click", () => {
    paused = !paused;
    missed = paused ? 0 : missed;
    setText(pause, paused ? "Go on" : "Pause");
    setAttribute(pause, "aria-pressed", String(paused));
    setText(state, paused ? "Paused." : "Following.");
    redraw();
  });
  ask.addEventListener("submit", (event) => {
    event.preventDefault();
    const id = wanted.value.trim();
    if (id) void explain(id);
    else wanted.focus();
  });
  return {
    element,
    show() {
      stop = new AbortController();
      void listen(stop.signal);
    },
    hide() {
      stop?.abort();
    },
    open: explain,
  };
}

/** The story of a request as nodes. */
function tell({ request, attempts, finished }) {
  const parts = [];
  if (request !== null) {
    const facts = [
      ["Ended", `${request.status}, ${why(request)}, after ${seconds(request.duration_s)}`],
      ["Asked for", `${request.endpoint || request.path}, model ${request.model || "–"}, about ${count(request.prompt_estimate)} prompt tokens`],
      ["Pool and class", `${request.pool || "–"}, ${request.class_name || "–"}${request.why ? ` (${request.why})` : ""}`],
      ["Policy", `revision ${request.revision}`],
      ["In the queue", seconds(request.queue_s)],
      ["First token", seconds(request.ttft_s)],
    ];
    parts.push(h("dl", { class: "facts-list" }, ...facts.map(([name, text]) => h("div", {}, h("dt", { text: name }), h("dd", { text })))));
  } else if (!finished) parts.push(h("p", { text: "It has not ended yet." }));
  if (!attempts.length) parts.push(h("p", { text: "It never got a worker." }));
  attempts.forEach((attempt, place) => {
    parts.push(h("h3", { text: `Try ${place + 1}: ${attempt.worker} in ${attempt.pool}, ${attempt.outcome ?? "running"}` }));
    const waited = attempt.queued_s > 0 ? `It waited ${seconds(attempt.queued_s)} for a place. ` : "It got a place at once. ";
    const canary = attempt.canary ? "The model's canary share sent it to this pool. " : "";
    parts.push(h("p", { text: `${waited}${canary}These could take it; the lowest score wins, and among nearly equal ones chance:` }));
    const seen = table(`Workers considered in try ${place + 1}`, "Worker", "Score", "");
    const most = Math.max(...attempt.considered.map((one) => one.score), 0);
    for (const { worker, score } of attempt.considered.toSorted((one, other) => one.score - other.score)) {
      const bar = meter(`Score of ${worker}`);
      bar.update(score, most, score.toPrecision(3), "fine");
      const chosen = worker === attempt.worker;
      seen.body.append(h("tr", { class: chosen ? "chosen" : null }, h("td", { text: worker }), h("td", { class: "wide-cell" }, bar.element), h("td", { text: chosen ? "chosen" : "" })));
    }
    parts.push(seen.element);
  });
  return parts;
}

// The fleet: pools, and a tile for each worker.

import { get, post } from "./api.js";
import { h, meter, setAttribute, setHidden, setText, syncList } from "./dom.js";
import { amount, percent, plural, seconds } from "./format.js";
import { whileShown } from "./pace.js";
import { reportWords, stateWords } from "./words.js";
import { workerDialog } from "./worker.js";

const OLD_REPORT_S = 5;
const ADVICE_MS = 10000;
const MAX_ADVICE = 50;

function notes(worker) {
  const found = [];
  const { cap, eject } = worker.operator;
  if (cap !== null) found.push(`capped at ${cap} by hand`);
  if (eject) found.push("ejected by hand");
  if (worker.failures) found.push(`${plural(worker.failures, "failure")} in a row`);
  if (worker.cooling_s > 0) found.push(`busy, rests ${seconds(worker.cooling_s)}`);
  if (worker.waiting) found.push(`${worker.waiting} wait in the engine`);
  return found.join(" · ");
}

export function fleetView(app) {
  const search = h("input", { type: "search", id: "fleet-search", placeholder: "id, model or state", autocomplete: "off" });
  const only = h(
    "select",
    { id: "fleet-only" },
    h("option", { value: "", text: "all workers" }),
    h("option", { value: "odd", text: "not ready" }),
    h("option", { value: "busy", text: "with requests" }),
  );
  const found = h("p", { class: "hint", role: "status" });
  const tools = h(
    "form",
    { class: "tools-row", role: "search", "aria-label": "Workers" },
    h("span", { class: "field" }, h("label", { for: "fleet-search", text: "Find" }), search),
    h("span", { class: "field" }, h("label", { for: "fleet-only", text: "Show" }), only),
    found,
  );
  tools.addEventListener("submit", (event) => event.preventDefault());
  const pools = h("div", { class: "pools" });
  const advice = adviceCard();
  const element = h("div", {}, tools, advice.element, pools);
  const pace = whileShown(app, ADVICE_MS, "Advice", async () => advice.update((await get("advice")).advice));
  const dialog = workerDialog(app, setDrain);
  let last = null;

  async function setDrain(worker, drain) {
    const action = drain ? "drain" : "undrain";
    const after = await app.act(`To ${action} ${worker.id}`, () => post(`workers/${encodeURIComponent(worker.id)}:${action}`));
    if (after === null) return;
    const rest = after.leases ? `${plural(after.leases, "request")} still run there` : "nothing runs there";
    app.say(drain ? `${worker.id} gets nothing new; ${rest}.` : `${worker.id} takes requests again.`);
  }

  function fits(worker) {
    if (only.value === "odd" && worker.state === "ready") return false;
    if (only.value === "busy" && !worker.leases) return false;
    const asked = search.value.trim().toLowerCase();
    if (!asked) return true;
    return [worker.id, worker.state, worker.source, ...worker.models].some((word) => word.toLowerCase().includes(asked));
  }

  function makeTile(first) {
    const name = h("h3", { text: first.id });
    const state = h("span", { class: "state" });
    const load = meter("In flight");
    const kv = meter("KV");
    const facts = h("p", { class: "tile-facts" });
    const told = h("p", { class: "tile-notes" });
    const drain = h("button", { type: "button" });
    const more = h("button", { type: "button", text: "Details", "aria-label": `Details of ${first.id}`, "aria-haspopup": "dialog" });
    const tile = h(
      "article",
      { class: "tile", "aria-label": `Worker ${first.id}` },
      h("header", {}, name, state),
      load.element,
      kv.element,
      facts,
      told,
      h("footer", {}, drain, more),
    );
    let now = first;
    drain.addEventListener("click", () => void setDrain(now, !now.operator.drain));
    more.addEventListener("click", () => dialog.open(now));
    return {
      element: tile,
      update(worker) {
        now = worker;
        setText(state, stateWords(worker));
        setAttribute(tile, "data-state", worker.state);
        setAttribute(tile, "data-old", worker.signal_age_s !== null && worker.signal_age_s > OLD_REPORT_S);
        load.update(worker.in_flight, worker.limit, `${worker.in_flight} / ${worker.limit}`);
        const capacity = worker.kv_capacity_tokens ?? 0;
        kv.update(worker.kv_used_tokens, capacity, capacity ? `${percent(worker.kv_usage)} of ${amount(capacity)}` : "capacity unknown");
        setText(facts, `${worker.models.join(", ") || "no model"} · ${reportWords(worker)}`);
        const words = notes(worker);
        setText(told, words);
        setHidden(told, !words);
        setText(drain, worker.operator.drain ? "Undrain" : "Drain");
        setAttribute(drain, "aria-label", `${worker.operator.drain ? "Undrain" : "Drain"} ${worker.id}`);
        setHidden(drain, worker.state === "gone");
      },
    };
  }

  function makePool(first) {
    const facts = h("p", { class: "pool-facts" });
    const load = meter("In flight");
    const kv = meter("KV");
    const tiles = h("div", { class: "tiles" });
    const none = h("p", { class: "hint" });
    return {
      element: h(
        "section",
        { class: "pool", "aria-label": `Pool ${first.pool.name}` },
        h("header", {}, h("h2", { text: first.pool.name }), facts, load.element, kv.element),
        none,
        tiles,
      ),
      update({ pool, workers }) {
        const parts = [`${pool.ready} of ${plural(pool.workers, "worker")} ready`];
        parts.push(pool.queued ? `${pool.queued} waiting, the oldest ${seconds(pool.oldest_wait_s)}` : "nobody waits");
        if (!pool.in_policy) parts.push("not in the policy");
        setText(facts, parts.join(" · "));
        load.update(pool.in_flight, pool.limit, `${pool.in_flight} / ${pool.limit}`);
        const capacity = pool.kv_capacity_tokens;
        kv.update(pool.kv_used_tokens, capacity, capacity ? `${percent(pool.kv_used_tokens / capacity)} of ${amount(capacity)}` : "–");
        syncList(tiles, workers, (worker) => `${worker.id} ${worker.incarnation}`, makeTile);
        setHidden(none, workers.length > 0);
        setText(none, pool.workers ? "No worker here fits what is looked for." : "This pool has no workers.");
      },
    };
  }

  function draw() {
    if (last === null) return;
    const byPool = new Map(last.pools.map((pool) => [pool.name, { pool, workers: [] }]));
    let shown = 0;
    for (const worker of last.workers) {
      if (!fits(worker)) continue;
      byPool.get(worker.pool)?.workers.push(worker);
      shown += 1;
    }
    syncList(pools, [...byPool.values()], ({ pool }) => pool.name, makePool);
    setText(found, shown === last.workers.length ? plural(shown, "worker") : `${shown} of ${plural(last.workers.length, "worker")}`);
  }

  search.addEventListener("input", draw);
  only.addEventListener("change", draw);
  return {
    element,
    show: pace.start,
    hide: pace.stop,
    update(fleet) {
      last = fleet;
      draw();
      dialog.update(fleet);
    },
  };
}

/** What stands out in the workers' reports, and what to change; nothing where nothing does. */
function adviceCard() {
  const words = h("summary");
  const list = h("ul", { class: "advice" });
  const element = h("details", { class: "card advice-card", hidden: true }, words, list);

  function makeItem() {
    const where = h("strong");
    const what = h("span");
    const change = h("span", { class: "hint" });
    return {
      element: h("li", {}, where, " ", what, " ", change),
      update(one) {
        setText(where, `${one.worker} (${one.pool}):`);
        setText(what, one.message);
        setText(change, one.change);
      },
    };
  }

  return {
    element,
    update(found) {
      setHidden(element, !found.length);
      setText(words, `${plural(found.length, "thing")} to look at in the workers' reports`);
      syncList(list, found.slice(0, MAX_ADVICE), (one) => `${one.worker} ${one.rule}`, makeItem);
    },
  };
}

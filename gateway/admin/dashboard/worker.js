// One worker in full, and what can be done to it by hand.

import { post } from "./api.js";
import { h, setHidden, setText, syncList } from "./dom.js";
import { amount, count, percent, seconds } from "./format.js";
import { reportWords, stateWords } from "./words.js";

function factsOf(worker) {
  const report = worker.report;
  const found = [
    ["State", stateWords(worker)],
    ["Pool", worker.pool],
    ["Models", worker.models.join(", ") || "none"],
    ["Address", worker.url || "–"],
    ["Known from", `${worker.source || "–"}, ${reportWords(worker)}`],
    ["In flight", `${worker.in_flight} of ${worker.limit} places, ${worker.leases} requests`],
    ["Context", worker.max_model_len === null ? "–" : `${count(worker.max_model_len)} tokens`],
    ["KV used", `${amount(worker.kv_used_tokens)} of ${amount(worker.kv_capacity_tokens)} tokens (${percent(worker.kv_usage)})`],
    ["Booked here", `${seconds(worker.booked_prefill_s)} prefill, ${seconds(worker.booked_decode_s)} decode, ${amount(worker.booked_kv_tokens)} KV tokens`],
    ["Failures in a row", count(worker.failures)],
    ["Set by hand", byHand(worker.operator)],
  ];
  if (report !== null) {
    found.push(["Engine", `${report.engine} ${report.version}`]);
    found.push(["In the engine", `${count(report.running)} running, ${count(report.waiting)} waiting, ${count(report.preemptions)} preemptions`]);
    if (report.prefix_queries) found.push(["Prefix hits", percent(report.prefix_hits / report.prefix_queries)]);
  }
  return found;
}

function byHand({ drain, eject, cap }) {
  const found = [drain && "drain", eject && "eject", cap !== null && `at most ${cap}`].filter(Boolean);
  return found.join(", ") || "nothing";
}

/** The dialog: open(worker), update(fleet). */
export function workerDialog(app, setDrain) {
  const title = h("h2", { id: "worker-title" });
  const facts = h("dl", { class: "facts-list" });
  const drain = h("button", { type: "button" });
  const eject = h("button", { type: "button" });
  const cap = h("input", { id: "worker-cap", type: "number", min: 0, max: 100000, inputmode: "numeric" });
  const setCap = h("button", { type: "submit", text: "Set cap" });
  const uncap = h("button", { type: "button", text: "No cap" });
  const capForm = h("form", { class: "row" }, h("label", { for: "worker-cap", text: "At most in flight" }), cap, setCap, uncap);
  const gone = h("p", { class: "error", role: "status", text: "This worker is gone.", hidden: true });
  const close = h("button", { type: "button", text: "Close" });
  const dialog = h(
    "dialog",
    { "aria-labelledby": "worker-title", class: "wide" },
    title,
    gone,
    facts,
    h("div", { class: "row" }, drain, eject),
    capForm,
    h("div", { class: "row end" }, close),
  );
  document.body.append(dialog);
  let worker = null;

  function draw() {
    setText(title, worker.id);
    syncList(facts, factsOf(worker), ([name]) => name, ([name]) => {
      const value = h("dd");
      return { element: h("div", {}, h("dt", { text: name }), value), update: ([, text]) => setText(value, text) };
    });
    setText(drain, worker.operator.drain ? "Undrain" : "Drain");
    const out = worker.operator.eject || worker.state === "ejected";
    setText(eject, out ? "Re-admit now" : "Eject");
  }

  async function tell(action, body, words) {
    const path = `workers/${encodeURIComponent(worker.id)}:${action}`;
    const after = await app.act(`To ${action} ${worker.id}`, () => post(path, body));
    if (after === null) return;
    worker = after;
    draw();
    app.say(words);
  }

  close.addEventListener("click", () => dialog.close());
  drain.addEventListener("click", () => void setDrain(worker, !worker.operator.drain));
  eject.addEventListener("click", () => {
    if (worker.operator.eject || worker.state === "ejected") void tell("readmit", undefined, `${worker.id} is in rotation again.`);
    else void tell("eject", undefined, `${worker.id} is out of rotation until it is let back in.`);
  });
  capForm.addEventListener("submit", (event) => {
    event.preventDefault();
    if (cap.value === "") return cap.focus();
    void tell("cap", { max_in_flight: Number(cap.value) }, `${worker.id} gets at most ${cap.value} at once.`);
  });
  uncap.addEventListener("click", () => void tell("cap", { max_in_flight: null }, `${worker.id} has no cap by hand.`));

  return {
    open(one) {
      worker = one;
      cap.value = one.operator.cap ?? "";
      draw();
      setHidden(gone, true);
      dialog.showModal();
      close.focus();
    },
    update(fleet) {
      if (!dialog.open) return;
      const now = fleet.workers.find((one) => one.id === worker.id);
      setHidden(gone, now !== undefined);
      if (now !== undefined) {
        worker = now;
        draw();
      }
    },
  };
}

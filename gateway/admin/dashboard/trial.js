// A policy tried out beside the one in force: begun from what is in the editor, compared as it goes, promoted or ended.

import { get, post } from "./api.js";
import { confirm, h, setHidden, setText, syncList, table, textRow } from "./dom.js";
import { count, percent, plural, seconds } from "./format.js";

const YAML = { "Content-Type": "application/yaml" };

/** {element, load(), ready(text)}: `ready` says which text is good to be tried, null for none; `changed()` is called after a promotion. */
export function trialCard(app, changed) {
  const words = h("p", { role: "status", class: "hint", id: "trial-words" });
  const mode = h("select", { id: "trial-mode" }, h("option", { value: "canary", text: "Canary: it decides for a share" }), h("option", { value: "shadow", text: "Shadow: it is asked, not obeyed" }));
  const share = h("input", { id: "trial-share", type: "number", min: 1, max: 100, step: 1, value: 10, required: true });
  const shareField = h("span", { class: "field" }, h("label", { for: "trial-share", text: "Share of requests, %" }), share);
  const start = h("button", { type: "submit", text: "Try it", disabled: true });
  const begin = h("form", { class: "tools-row" }, h("span", { class: "field" }, h("label", { for: "trial-mode", text: "As" }), mode), shareField, start);
  const arms = table("The canary beside the rest", "", "#Requests", "#Failed", "#Rejected", "#TTFT p50", "#TTFT p95", "#Mean total");
  const differences = table("What the shadow would have done otherwise", "What", "Now", "Would be", "#Requests");
  const promote = h("button", { type: "button", class: "primary", text: "Promote" });
  const withdraw = h("button", { type: "button", text: "Withdraw" });
  const ends = h("div", { class: "tools-row", hidden: true }, promote, withdraw);
  const element = h("section", { class: "card", "aria-label": "Trial" }, h("h2", { text: "Try it out" }), begin, words, arms.element, differences.element, ends);
  let wanted = null;
  let running = null;

  function show({ trial, pending }) {
    running = trial;
    const canary = trial?.mode === "canary";
    setHidden(ends, trial === null);
    setHidden(arms.element, !canary);
    setHidden(differences.element, trial?.mode !== "shadow" || !trial.differences.length);
    if (trial === null) {
      setText(words, pending ? "Ended here; the other gateways go on with it until Redis answers." : "Nothing is being tried.");
      return;
    }
    const at = trial.gateways > 1 ? ` at ${trial.gateways} gateways` : "";
    const against = `by ${trial.revision.author}, against revision ${trial.base}, for ${seconds(trial.age_s)}${at}`;
    if (canary) {
      setText(words, `A canary decides for ${percent(trial.share)} of the requests; ${against}.`);
      const sides = [{ name: "canary", arm: trial.trial }, { name: "the rest", arm: trial.rest }];
      syncList(arms.body, sides, (side) => side.name, textRow(({ name, arm }) => [
        name,
        ...[arm.requests, arm.failed, arm.rejected].map((value) => ({ number: count(value) })),
        ...[arm.ttft_p50_s, arm.ttft_p95_s, arm.e2e_mean_s].map((value) => ({ number: seconds(value) })),
      ]));
    } else {
      setText(words, `A shadow was asked about ${plural(trial.seen, "request")} and would have done otherwise for ${count(trial.different)}; ${against}.`);
      syncList(differences.body, trial.differences, (one) => `${one.what}\n${one.from}\n${one.to}`, textRow((one) => [one.what, one.from || "–", one.to || "–", { number: count(one.requests) }]));
    }
  }

  async function load() {
    show(await get("policy/trial"));
  }

  async function act(what, work, after) {
    const done = await app.act(what, work);
    if (done === null) return;
    after(done);
    await load();
  }

  mode.addEventListener("change", () => setHidden(shareField, mode.value !== "canary"));
  begin.addEventListener("submit", async (event) => {
    event.preventDefault();
    const text = wanted;
    if (text === null) return;
    const query = new URLSearchParams({ mode: mode.value });
    if (mode.value === "canary") query.set("share", `${share.value}%`);
    if (running !== null && !(await confirm(`End the ${running.mode} that runs?`, "End it", h("p", { text: "There is one trial at a time: this one takes its place." })))) return;
    await act("To try it", () => post(`policy:try?${query}`, text, { headers: YAML }), ({ trial }) => app.say(`The ${trial.mode} has begun.`));
  });
  promote.addEventListener("click", async () => {
    if (!(await confirm(`Make the ${running.mode} the policy in force?`, "Promote", h("p", { text: "It becomes the next revision, for all requests." })))) return;
    await act("To promote", () => post("policy:promote", {}), (done) => {
      app.say(`Revision ${done.revision.number} is applied.`);
      changed();
    });
  });
  withdraw.addEventListener("click", () => void act("To withdraw", () => post("policy:withdraw"), (done) => app.say(`The ${done.ended.mode} has ended.`)));
  return {
    element,
    load,
    ready(text) {
      wanted = text;
      start.disabled = text === null;
    },
  };
}

// The policy: edited here, checked while it is typed, compared, simulated, applied, followed to every replica.

import { ApiError, LostError, call, get, post } from "./api.js";
import { editor } from "./editor.js";
import { h, setHidden, setText } from "./dom.js";
import { plural } from "./format.js";
import { difference, problemList, simulation } from "./outcome.js";
import { whileShown } from "./pace.js";
import { replicaList, revisionList } from "./revisions.js";
import { trialCard } from "./trial.js";
import { toYaml } from "./yaml.js";

const TYPING_MS = 350;
const STATE_MS = 1000;
const SIMULATE_MS = 180000;
const YAML = { "Content-Type": "application/yaml" };

export function policyView(app) {
  const based = h("p", { class: "hint", id: "policy-based" });
  const verdict = h("p", { class: "verdict", role: "status", id: "policy-verdict" });
  const problems = h("div", { id: "policy-problems" });
  const edit = editor("Policy document, YAML", "policy-verdict policy-based", typed);
  const moved = h("p", { class: "error", role: "alert" });
  const takeOver = h("button", { type: "button", text: "Compare with the new one" });
  const movedBox = h("div", { class: "row", hidden: true }, moved, takeOver);
  const reload = h("button", { type: "button", text: "Discard my changes" });
  const whole = h("button", { type: "button", text: "Write out the defaults" });
  const last = h("select", { id: "simulate-last" }, ...[["900", "15 minutes"], ["3600", "hour"], ["14400", "4 hours"]].map(([value, text]) => h("option", { value, text, selected: value === "3600" })));
  const simulate = h("button", { type: "button", text: "Simulate", disabled: true });
  const note = h("input", { id: "policy-note", maxlength: 500, autocomplete: "off", placeholder: "why" });
  const force = h("input", { type: "checkbox", id: "policy-force" });
  const forceBox = h("label", { class: "check", hidden: true }, force, h("span", { text: "Apply it although guard rails stand against it" }));
  const apply = h("button", { type: "submit", class: "primary", text: "Apply", disabled: true });
  const applyForm = h("form", { class: "tools-row" }, h("label", { for: "policy-note", text: "Note" }), note, forceBox, apply);
  const diffBox = h("div", { class: "outcome" });
  const simBox = h("div", { class: "outcome" });
  const trial = trialCard(app, afterChange);
  const replicas = replicaList();
  const history = revisionList(app, afterChange, (text, number) => {
    edit.value = text;
    typed();
    edit.area.focus();
    app.say(`The text of revision ${number} is in the editor. Nothing is applied.`);
  });
  const element = h(
    "div",
    { class: "policy" },
    h(
      "section",
      { class: "card edit", "aria-label": "Document" },
      h("h2", { text: "Document" }),
      based,
      movedBox,
      edit.element,
      verdict,
      problems,
      h("div", { class: "tools-row" }, reload, whole),
      applyForm,
    ),
    h(
      "div",
      { class: "side" },
      h("section", { class: "card", "aria-label": "Changes" }, h("h2", { text: "What it changes" }), diffBox),
      h(
        "section",
        { class: "card", "aria-label": "Simulation" },
        h("h2", { text: "Simulation" }),
        h("div", { class: "tools-row" }, h("label", { for: "simulate-last", text: "On the traffic of the last" }), last, simulate),
        simBox,
      ),
      trial.element,
      replicas.element,
      history.element,
    ),
  );
  let base = null; // {text, etag, number}: what the text in the editor began from
  let known = 0; // the current revision's number
  let timer = null;
  let asking = null;
  let ok = null; // the text that was found good and different
  let touched = false; // what is in the editor is the user's: nothing may overwrite it

  const dirty = () => base !== null && edit.value !== base.text;

  // -- from the gateway ------------------------------------------------------------------------------------------------

  async function load() {
    const { data, etag } = await call("GET", "policy", { headers: { Accept: "application/yaml" } });
    base = { text: data, etag, number: Number(/^"?(\d+)/.exec(etag)?.[1] ?? 0) };
    known = base.number;
    if (!touched) edit.value = data;
    typed();
    await history.load();
  }

  async function look() {
    const state = await get("policy/state");
    replicas.update(state);
    await trial.load();
    if (base === null) return load();
    if (state.revision.number !== known) {
      known = state.revision.number;
      await history.load();
    }
    if (known === base.number) return undefined;
    if (!dirty()) return load();
    setText(moved, `Revision ${known} was made meanwhile; your text began from revision ${base.number}.`);
    setHidden(movedBox, false);
    return undefined;
  }

  const pace = whileShown(app, STATE_MS, "The policy", look);

  /** Keep the text, but hold it against what is current now. */
  async function rebase() {
    const found = await app.act("To read the policy", () => call("GET", "policy", { headers: { Accept: "application/yaml" } }));
    if (found === null) return;
    base = { text: found.data, etag: found.etag, number: Number(/^"?(\d+)/.exec(found.etag)?.[1] ?? 0) };
    known = base.number;
    typed();
  }

  function afterChange() {
    base = null; // to be read again
    pace.soon();
  }

  // -- while it is typed -----------------------------------------------------------------------------------------------

  function typed() {
    clearTimeout(timer);
    asking?.abort();
    ok = null;
    trial.ready(null);
    touched = dirty() || (base === null && touched);
    apply.disabled = simulate.disabled = true;
    if (base !== null) setText(based, `${dirty() ? "Changed from" : "As in"} revision ${base.number}.`);
    setHidden(movedBox, base === null || base.number === known);
    setHidden(whole, base === null || edit.value.trim().length > 4);
    reload.disabled = !dirty();
    if (!dirty()) {
      edit.setProblems([]);
      problems.replaceChildren();
      setText(verdict, "");
      say("same", "Nothing yet.");
      setHidden(forceBox, true);
      return;
    }
    setText(verdict, "Checking…");
    timer = setTimeout(() => void check(), TYPING_MS);
  }

  function say(state, text) {
    verdict.dataset.state = state;
    diffBox.replaceChildren(h("p", { class: "hint", text }));
  }

  async function check() {
    asking = new AbortController();
    const text = edit.value;
    try {
      const options = { headers: YAML, signal: asking.signal };
      const checked = await post("policy:check", text, options);
      if (!checked.ok) return bad(checked.problems);
      const found = await post("policy:diff", text, options);
      if (!found.ok) return bad(found.problems);
      return good(text, found);
    } catch (error) {
      if (error instanceof ApiError) {
        verdict.dataset.state = "bad";
        if (error.data.problems) return bad(error.data.problems);
        return setText(verdict, error.message);
      }
      if (error instanceof LostError) {
        setText(verdict, "Not checked: the gateway does not answer.");
        timer = setTimeout(() => void check(), 2000);
      } else if (error.name !== "AbortError") throw error;
      return undefined;
    }
  }

  function bad(found) {
    edit.setProblems(found);
    problems.replaceChildren(problemList(found, edit.jump));
    say("bad", "Nothing to compare until it has no faults.");
    setText(verdict, `${plural(found.length, "fault")}. Nothing can be applied.`);
    setHidden(forceBox, true);
  }

  function good(text, found) {
    edit.setProblems([]);
    problems.replaceChildren();
    verdict.dataset.state = "good";
    setHidden(forceBox, !found.guards.length);
    force.checked = false;
    if (!found.different) {
      setText(verdict, "Valid; it means the same as what is in use.");
      diffBox.replaceChildren(h("p", { class: "hint", text: "Nothing." }));
      return;
    }
    setText(verdict, `Valid; ${plural(found.lines.length, "change")}.`);
    diffBox.replaceChildren(...difference(found));
    ok = text;
    trial.ready(text);
    apply.disabled = simulate.disabled = false;
  }

  // -- what is done with it --------------------------------------------------------------------------------------------

  async function runSimulation() {
    const text = ok;
    simulate.disabled = true;
    setText(simulate, "Simulating…");
    simBox.replaceChildren(h("p", { class: "hint", role: "status", text: "Replaying the recorded traffic under both policies…" }));
    const options = { headers: YAML, timeout: SIMULATE_MS };
    try {
      const found = await app.act("To simulate", () => post(`policy:simulate?last=${last.value}`, text, options), [404, 405, 409]);
      simBox.replaceChildren(...(found === null ? [] : simulation(found)));
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      const words = error.code === "not_found" || error.status === 405 ? "This gateway cannot simulate." : error.message;
      simBox.replaceChildren(h("p", { class: "error", role: "status", text: words }));
    } finally {
      setText(simulate, "Simulate");
      simulate.disabled = ok === null;
    }
  }

  async function runApply() {
    const text = ok;
    if (text === null) return;
    apply.disabled = true;
    const query = new URLSearchParams();
    if (note.value.trim()) query.set("note", note.value.trim());
    if (force.checked) query.set("force", "1");
    const headers = { ...YAML, "If-Match": base.etag };
    try {
      const done = await app.act("To apply", () => call("PUT", `policy?${query}`, { body: text, headers }), [409, 412, 422]);
      if (done === null) return;
      note.value = "";
      touched = edit.value !== text; // typed on while it was applied
      app.say(done.data.changed ? `Revision ${done.data.revision.number} is applied.` : "Nothing to do: it means the same.");
      afterChange();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (error.status === 412) {
        known = error.data.current.number;
        setText(moved, `Not applied: revision ${known} was made meanwhile; your text began from revision ${base.number}.`);
        setHidden(movedBox, false);
      } else if (error.status === 409 && error.data.guards) {
        setHidden(forceBox, false);
        setText(verdict, `Not applied. ${error.message}`);
      } else if (error.data.problems) bad(error.data.problems);
      else app.say(error.message, "fault");
    } finally {
      apply.disabled = ok === null;
    }
  }

  reload.addEventListener("click", () => {
    edit.value = base.text;
    typed();
    if (base.number !== known) afterChange();
  });
  whole.addEventListener("click", async () => {
    const found = await app.act("To read the policy", () => get("policy"));
    if (found === null) return;
    edit.value = toYaml(found.policy);
    typed();
    edit.area.focus();
  });
  takeOver.addEventListener("click", () => void rebase());
  simulate.addEventListener("click", () => void runSimulation());
  applyForm.addEventListener("submit", (event) => {
    event.preventDefault();
    void runApply();
  });
  return { element, show: pace.start, hide: pace.stop };
}

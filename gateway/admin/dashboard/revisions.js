// The history of the policy, and the way back; and what each replica uses.

import { get, post } from "./api.js";
import { confirm, h, setHidden, setText, syncList, table } from "./dom.js";
import { seconds, when } from "./format.js";
import { difference } from "./outcome.js";

const LISTED = 20;

/** {element, update(state), load()}: the replicas. */
export function replicaList() {
  const words = h("p", { class: "converged", role: "status" });
  const list = table("Replicas", "Replica", "#Revision", "#Heard", "State");
  const notes = h("p", { class: "hint", hidden: true });
  const element = h("section", { class: "card", "aria-label": "Convergence" }, h("h2", { text: "Convergence" }), words, list.element, notes);

  function makeRow() {
    const cells = ["mono", "number", "number", ""].map((kind) => h("td", { class: kind || null }));
    const row = h("tr", {}, ...cells);
    return {
      element: row,
      update({ one, latest }) {
        setText(cells[0], one.self ? `${one.id} (this one)` : one.id);
        setText(cells[1], String(one.number));
        setText(cells[2], one.self ? "now" : `${seconds(one.age_s)} ago`);
        setText(cells[3], one.rejected ? `refused: ${one.rejected}` : one.number === latest ? "has it" : "behind");
      },
    };
  }

  return {
    element,
    update(state) {
      const have = state.replicas.filter((one) => one.number === state.latest).length;
      const all = state.replicas.length;
      const lag = state.lag_s > 0 ? ` This replica may be ${seconds(state.lag_s)} behind.` : "";
      setText(words, `Revision ${state.latest} on ${have} of ${all} replica${all === 1 ? "" : "s"}: ${state.converged ? "converged" : "not converged yet"}.${lag}`);
      words.dataset.converged = String(state.converged);
      syncList(list.body, state.replicas.map((one) => ({ one, latest: state.latest })), ({ one }) => one.id, makeRow);
      const told = [];
      if (state.file?.drift) told.push(`The file ${state.file.path} says something else: the API overrides it. headrace policy export writes back.`);
      if (state.file?.rejected) told.push(`The file ${state.file.path} is not taken over: ${state.file.rejected}`);
      if (state.journal_error) told.push(`The history cannot be written: ${state.journal_error}`);
      if (!state.history_verified) told.push("The chain of the history is broken: somebody changed it.");
      setText(notes, told.join(" "));
      setHidden(notes, !told.length);
    },
  };
}

/** {element, load()}: `changed()` is called after a rollback, `edit(text)` to begin from an old text. */
export function revisionList(app, changed, edit) {
  const list = table("History", "#Revision", "Made", "By", "Why", "");
  const more = h("button", { type: "button", text: "Show older ones", hidden: true });
  const element = h("section", { class: "card", "aria-label": "History" }, h("h2", { text: "History" }), list.element, more);
  let current = null;
  let listed = LISTED;

  function makeRow(revision) {
    const cells = ["number", "", "", ""].map((kind) => h("td", { class: kind || null }));
    const back = h("button", { type: "button", text: "Roll back", "aria-label": `Roll back to revision ${revision.number}` });
    const take = h("button", { type: "button", text: "Edit", "aria-label": `Edit the text of revision ${revision.number}` });
    const mark = h("span", { class: "badge", text: "current" });
    back.addEventListener("click", () => void rollback(revision));
    take.addEventListener("click", () => void open(revision));
    setText(cells[0], String(revision.number));
    setText(cells[1], when(revision.created));
    setText(cells[2], revision.author === revision.source ? revision.author : `${revision.author}, ${revision.source}`);
    setText(cells[3], revision.note || "–");
    return {
      element: h("tr", {}, ...cells, h("td", {}, h("div", { class: "row" }, mark, back, take))),
      update() {
        setHidden(mark, revision.number !== current);
        setHidden(back, revision.number === current);
      },
    };
  }

  async function open(revision) {
    const found = await app.act(`To read revision ${revision.number}`, () => get(`policy/revisions/${revision.number}`));
    if (found !== null) edit(found.text, revision.number);
  }

  async function rollback(revision) {
    const found = await app.act("To compare", () => post(`policy:diff?to=${revision.number}`));
    if (found === null) return;
    const body = found.different
      ? [h("p", { text: `This makes a new revision with the content of revision ${revision.number}:` }), ...difference(found)]
      : [h("p", { text: "It means the same as what is in use." })];
    const force = found.guards?.length ? "?force=1" : "";
    const title = force ? `Roll back to revision ${revision.number} all the same?` : `Roll back to revision ${revision.number}?`;
    if (!(await confirm(title, "Roll back", ...body))) return;
    const done = await app.act("To roll back", () => post(`policy:rollback${force}`, { to: revision.number }));
    if (done === null) return;
    app.say(done.changed ? `Revision ${done.revision.number} has the content of revision ${revision.number}.` : "Nothing to do: it means the same.");
    changed();
  }

  async function load() {
    const found = await get(`policy/revisions?limit=${listed}`);
    current = found.revisions[0]?.number ?? null;
    syncList(list.body, found.revisions, (one) => `${one.number} ${one.digest}`, makeRow);
    setHidden(more, !found.more);
  }

  more.addEventListener("click", () => {
    listed = Math.min(listed * 5, 500);
    void app.act("To read the history", load);
  });
  return { element, load };
}

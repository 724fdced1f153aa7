// Client keys and the record of changes: for those with a token of role admin.

import { get, post } from "./api.js";
import { confirm, h, setAttribute, setHidden, setText, syncList, table } from "./dom.js";
import { count, plural, when } from "./format.js";
import { whileShown } from "./pace.js";

const PACE_MS = 3000;
const ENTRIES = 100;
const GOOD = new Set(["ok", "unchanged"]);

export function accessView(app) {
  const words = h("p", { text: "Client keys and the record of changes are shown to those with a token of role admin." });
  const logIn = h("button", { type: "button", text: "Log in as admin" });
  logIn.addEventListener("click", () => app.needToken("This needs the token of role admin."));
  const closed = h("div", { class: "row card" }, words, logIn);
  const keys = keyCard(app, () => pace.soon());
  const audit = auditCard();
  const open = h("div", { class: "stack", hidden: true }, keys.element, audit.element);
  const pace = whileShown(app, PACE_MS, "Keys and audit", look);

  async function look() {
    const admin = app.role === "admin";
    setHidden(closed, admin);
    setHidden(open, !admin);
    if (!admin) return;
    keys.update((await get("keys")).keys);
    audit.update(await get(`audit?limit=${ENTRIES}`));
  }

  return { element: h("div", {}, closed, open), show: pace.start, hide: pace.stop, update: () => setHidden(closed, app.role === "admin") };
}

function keyCard(app, changed) {
  const tenant = h("input", { id: "key-tenant", required: true, maxlength: 64, pattern: "[A-Za-z0-9_][A-Za-z0-9_.\\-]*", title: "letters, digits and _ . -", autocomplete: "off", spellcheck: "false" });
  const note = h("input", { id: "key-note", maxlength: 256, autocomplete: "off", placeholder: "for whom or what" });
  const trusted = h("input", { type: "checkbox", id: "key-trusted" });
  const make = h("button", { type: "submit", class: "primary", text: "Make a key" });
  const form = h(
    "form",
    { class: "tools-row", "aria-label": "New key" },
    h("span", { class: "field" }, h("label", { for: "key-tenant", text: "Tenant" }), tenant),
    h("span", { class: "field grow" }, h("label", { for: "key-note", text: "Note" }), note),
    h("label", { class: "check quiet" }, trusted, h("span", { text: "may speak for any tenant" })),
    make,
  );
  const list = table("Client keys", "Key", "Tenant", "Made", "Note", "State", "");
  const none = h("p", { class: "hint", text: "There are no keys: whoever reaches the data listener is the tenant default." });
  const element = h("section", { class: "card", "aria-label": "Client keys" }, h("h2", { text: "Client keys" }), form, list.element, none);

  async function change(key, action, ask, title) {
    if (!(await confirm(title, action === "rotate" ? "Rotate" : "Revoke", h("p", { text: ask })))) return;
    const done = await app.act(`To ${action} ${key.id}`, () => post(`keys/${encodeURIComponent(key.id)}:${action}`));
    if (done === null) return;
    if (done.key) handOut(done);
    else app.say(`Key ${done.id} of ${done.tenant} is revoked.`);
    changed();
  }

  function makeRow(first) {
    const cells = ["mono", "", "", "", ""].map((kind) => h("td", { class: kind || null }));
    const rotate = h("button", { type: "button", text: "Rotate", "aria-label": `Rotate key ${first.id}` });
    const revoke = h("button", { type: "button", text: "Revoke", "aria-label": `Revoke key ${first.id}` });
    rotate.addEventListener("click", () => void change(first, "rotate", "It gets a new secret; the old one ends at once, at every gateway.", `Give key ${first.id} a new secret?`));
    revoke.addEventListener("click", () => void change(first, "revoke", `Requests of ${first.tenant} with this key are refused from then on.`, `Revoke key ${first.id}?`));
    return {
      element: h("tr", {}, ...cells, h("td", {}, h("div", { class: "row" }, rotate, revoke))),
      update(key) {
        const over = key.revoked !== null;
        [key.id, key.trusted ? `${key.tenant} (trusted)` : key.tenant, when(key.created), key.note || "–", over ? `revoked ${when(key.revoked)}` : key.rotated ? `good, ${plural(key.rotated, "rotation")}` : "good"].forEach((text, place) => setText(cells[place], text));
        setAttribute(cells[4], "data-outcome", over ? "refused" : "ok");
        setHidden(rotate, over);
        setHidden(revoke, over);
      },
    };
  }

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const body = { tenant: tenant.value.trim(), note: note.value.trim(), trusted: trusted.checked };
    const done = await app.act("To make a key", () => post("keys", body));
    if (done === null) return;
    form.reset();
    handOut(done);
    changed();
  });
  return {
    element,
    update(found) {
      syncList(list.body, found.toReversed(), (key) => key.id, makeRow);
      setHidden(list.element, !found.length);
      setHidden(none, found.length > 0);
    },
  };

  /** Show a secret, once. */
  function handOut(made) {
    const field = h("input", { id: "key-secret", readonly: true, class: "mono", value: made.key, "aria-label": `Key of ${made.tenant}` });
    const copy = h("button", { type: "button", text: "Copy" });
    const told = h("p", { class: "hint", role: "status" });
    copy.addEventListener("click", async () => {
      field.select();
      try {
        await navigator.clipboard.writeText(made.key);
        setText(told, "Copied.");
      } catch {
        setText(told, "It is selected: copy it with the keyboard."); // not on a secure origin, or not allowed
      }
    });
    const heading = h("h2", { id: "key-title", text: `Key ${made.id} for ${made.tenant}` });
    const once = h("p", { text: "This is the only time it is shown; what is kept is a hash." });
    const shared = made.shared === false ? h("p", { class: "error", text: "Redis does not answer: the other gateways learn of it when it does." }) : null;
    const form = h("form", { method: "dialog" }, heading, once, shared, h("div", { class: "row" }, h("span", { class: "field grow" }, field), copy), told, h("div", { class: "row" }, h("button", { type: "submit", class: "primary", text: "Done" })));
    const dialog = h("dialog", { "aria-labelledby": "key-title" }, form);
    dialog.addEventListener("close", () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
    field.select();
  }
}

function auditCard() {
  const words = h("p", { class: "converged", role: "status" });
  const list = table("The last changes, the newest first", "#No.", "When", "Who", "What", "On", "How it ended", "Details");
  const none = h("p", { class: "hint", text: "Nothing has been changed yet." });
  const element = h("section", { class: "card", "aria-label": "Audit log" }, h("h2", { text: "Audit log" }), words, list.element, none);

  function makeRow(entry) {
    const who = entry.who === entry.role || !entry.role ? entry.who : `${entry.who} (${entry.role})`;
    const from = entry.peer ? `${who}, ${entry.peer}` : who;
    const texts = [count(entry.sequence), when(entry.at), from, entry.action, entry.target || "–", entry.result, details(entry.detail)];
    const cells = texts.map((text, place) => h("td", { class: ["number", "nowrap", null, "mono", "mono break", null, "break"][place], text }));
    setAttribute(cells[5], "data-outcome", GOOD.has(entry.result) ? "ok" : "refused");
    return { element: h("tr", {}, ...cells), update() {} };
  }

  return {
    element,
    update({ entries, verified, fault }) {
      setText(words, verified === false ? `The log is not as it was written: ${fault}` : verified === null ? "This gateway keeps no log." : "The log is whole: every entry follows from the one before.");
      words.dataset.converged = String(verified !== false);
      syncList(list.body, entries, (entry) => `${entry.sequence} ${entry.hash}`, makeRow);
      setHidden(list.element, !entries.length);
      setHidden(none, entries.length > 0);
    },
  };
}

/** What an entry says beside its outcome, in one line. */
function details(detail) {
  return Object.entries(detail ?? {}).map(([name, value]) => `${name}: ${Array.isArray(value) ? value.join("; ") : typeof value === "object" ? JSON.stringify(value) : value}`).join(" · ") || "–";
}

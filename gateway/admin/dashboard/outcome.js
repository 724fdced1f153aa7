// What a wanted policy comes to, as nodes: its faults, what it changes, what recorded traffic would have met.

import { h, table } from "./dom.js";
import { count, percent, plural, seconds } from "./format.js";

const MAX_LINES = 2000;

/** Each fault with its place; `jump(line, column)` goes there. */
export function problemList(problems, jump) {
  return h("ol", { class: "problems" }, ...problems.map((one) => {
    const where = one.line === null ? "" : `line ${one.line}: `;
    const path = one.path ? `${one.path}: ` : "";
    const cure = one.suggestion ? `; did you mean ${one.suggestion}?` : "";
    const words = `${where}${path}${one.message}${cure}`;
    if (one.line === null) return h("li", { text: words });
    return h("li", {}, h("button", { type: "button", class: "plain", text: words, onclick: () => jump(one.line, one.column) }));
  }));
}

/** Changes in words, guard rails, and the difference of the texts. */
export function difference({ lines, text, guards }) {
  const parts = [];
  if (guards.length) {
    parts.push(h("p", { class: "error", text: "Guard rails stand against it:" }));
    parts.push(h("ul", { class: "guards" }, ...guards.map((one) => h("li", { text: one.message }))));
  }
  parts.push(h("ul", { class: "changes" }, ...lines.map((line) => h("li", { text: line }))));
  if (text) parts.push(h("details", {}, h("summary", { text: "As text, every default written out" }), unified(text)));
  return parts;
}

function unified(text) {
  const kinds = { "+": "added", "-": "removed", "@": "hunk" };
  const all = text.split("\n");
  const shown = all.slice(0, MAX_LINES).map((line) => h("span", { class: `diff-line ${kinds[line[0]] ?? ""}`, text: `${line}\n` }));
  if (all.length > MAX_LINES) shown.push(h("span", { class: "diff-line hunk", text: `${all.length - MAX_LINES} more lines` }));
  return h("pre", { class: "diff", tabindex: 0, "aria-label": "Difference as text" }, ...shown);
}

const FIGURES = [
  ["Requests", "requests", count, 0],
  ["Rejected", "rejected", count, -1],
  ["Goodput", "goodput", (value) => (typeof value === "number" && value <= 1 ? percent(value) : count(value)), 1],
  ["TTFT p50", "ttft_p50_s", seconds, -1],
  ["TTFT p95", "ttft_p95_s", seconds, -1],
  ["TTFT p99", "ttft_p99_s", seconds, -1],
  ["TPOT p50", "tpot_p50_s", seconds, -1],
  ["TPOT p99", "tpot_p99_s", seconds, -1],
];
const WORTH_SAYING = 0.02; // smaller differences are not coloured

/** Both sides of a simulation, group by group. */
export function simulation(found) {
  const moved = `${plural(found.requests, "request")} over ${seconds(found.seconds)}, replayed in ${seconds(found.took_s)}; ${plural(found.moved, "request")} would go elsewhere.`;
  const parts = [h("p", { text: moved })];
  if (found.moves?.length) {
    parts.push(h("ul", {}, ...found.moves.map((one) => h("li", { text: `${plural(one.requests, "request")}: ${one.from || "–"} → ${one.to || "–"}` }))));
  }
  const groups = [["All", found.before.all, found.after.all]];
  for (const [kind, field] of [["class", "classes"], ["pool", "pools"], ["tenant", "tenants"]]) {
    const names = new Set([...Object.keys(found.before[field] ?? {}), ...Object.keys(found.after[field] ?? {})]);
    for (const name of names) groups.push([`${kind} ${name}`, found.before[field]?.[name], found.after[field]?.[name]]);
  }
  const grid = table("Simulated on recorded traffic, now and with the change", "", ...FIGURES.map(([name]) => `#${name}`));
  for (const [name, before, after] of groups) {
    grid.body.append(h("tr", {}, h("th", { scope: "row", text: name }), ...FIGURES.map((figure) => compared(figure, before, after))));
  }
  parts.push(grid.element);
  for (const [name, words] of [["kv_peak", "KV peak"], ["busy", "Busy"]]) {
    const pools = Object.entries(found.after[name] ?? {});
    if (pools.length) parts.push(h("p", { text: `${words}: ${pools.map(([pool, share]) => `${pool} ${percent(found.before[name]?.[pool])} → ${percent(share)}`).join(", ")}` }));
  }
  const reasons = new Set([...Object.keys(found.before.rejects ?? {}), ...Object.keys(found.after.rejects ?? {})]);
  if (reasons.size) {
    const told = [...reasons].map((reason) => `${reason} ${count(found.before.rejects[reason] ?? 0)} → ${count(found.after.rejects[reason] ?? 0)}`);
    parts.push(h("p", { text: `Rejects: ${told.join(", ")}` }));
  }
  if (found.notes?.length) parts.push(h("ul", { class: "hint" }, ...found.notes.map((note) => h("li", { text: note }))));
  return parts;
}

function compared([, field, words, better], before, after) {
  const [was, is] = [before?.[field], after?.[field]];
  const text = was === is || words(was) === words(is) ? words(is) : `${words(was)} → ${words(is)}`;
  const far = typeof was === "number" && typeof is === "number" && Math.abs(is - was) > WORTH_SAYING * Math.abs(was);
  const verdict = !far || !better ? null : (is > was) === better > 0 ? "better" : "worse";
  return h("td", { class: verdict ? `number ${verdict}` : "number", text: verdict ? `${text} (${verdict})` : text });
}

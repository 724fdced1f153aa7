// TTFT and ITL by class over the last quarter of an hour, as the gateway kept them, and as this page has seen them.

import { get } from "./api.js";
import { chart } from "./chart.js";
import { h, setHidden, syncList, table, textRow } from "./dom.js";
import { count, seconds } from "./format.js";
import { whileShown } from "./pace.js";

const LOOK_MS = 5000;
const SPAN_S = 900;
const COLOURS = 8;

export function latencyView(app) {
  const ttft = chart("Time to first token by class, p50 and p95, last 15 minutes", SPAN_S);
  const itl = chart("Time between tokens by class, p50 and p95, last 15 minutes", SPAN_S);
  const legend = h("ul", { class: "legend", "aria-label": "Classes" });
  const now = table("The last minute, by class", "Class", "#Requests", "#TTFT p50", "#TTFT p95", "#ITL p50", "#ITL p95", "#Rejected", "#Failed");
  const none = h("p", { class: "hint", text: "No requests in the last minute." });
  const element = h(
    "div",
    {},
    h("p", { class: "hint", text: "Percentiles of 10 s steps, of the requests that this gateway served. Solid: p50. Dashed: p95." }),
    legend,
    h(
      "div",
      { class: "columns" },
      h("section", { class: "card", "aria-label": "Time to first token" }, h("h2", { text: "Time to first token" }), ttft.element),
      h("section", { class: "card", "aria-label": "Time between tokens" }, h("h2", { text: "Time between tokens" }), itl.element),
    ),
    h("section", { class: "card", "aria-label": "Last minute" }, h("h2", { text: "Last minute" }), now.element, none),
  );
  // What was seen stays when a gateway starts anew and has forgotten it. By the time of its end, in steps.
  const kept = new Map();
  const colours = new Map();
  const hidden = new Set();
  let step = 10;

  function remember(history) {
    const at = Date.now() / 1000;
    step = history.step_s;
    for (const each of history.steps) kept.set(Math.round((at - each.age_s) / step), { ends: at - each.age_s, classes: each.classes });
    for (const [key, each] of kept) if (at - each.ends > SPAN_S + step) kept.delete(key);
  }

  function draw() {
    const at = Date.now() / 1000;
    const steps = [...kept.values()].sort((one, other) => one.ends - other.ends);
    const names = [...new Set(steps.flatMap((each) => Object.keys(each.classes)))].sort();
    for (const name of names) if (!colours.has(name)) colours.set(name, colours.size % COLOURS);
    syncList(legend, names, (name) => name, makeKey);
    const series = (field) =>
      names
        .filter((name) => !hidden.has(name))
        .flatMap((name) =>
          ["p50", "p95"].map((share) => ({
            name: `${name} ${share}`,
            colour: colours.get(name),
            dashed: share === "p95",
            points: steps
              .filter((each) => each.classes[name]?.[`${field}_${share}_s`] != null)
              .map((each) => [Math.max(0, at - each.ends), each.classes[name][`${field}_${share}_s`]]),
          })),
        );
    ttft.update(series("ttft"), step * 1.9);
    itl.update(series("itl"), step * 1.9);
  }

  function makeKey(name) {
    const box = h("input", { type: "checkbox", checked: true });
    box.addEventListener("change", () => {
      if (box.checked) hidden.delete(name);
      else hidden.add(name);
      draw();
    });
    const swatch = h("span", { class: `swatch colour-${colours.get(name)}`, "aria-hidden": "true" });
    return { element: h("li", {}, h("label", {}, box, swatch, h("span", { text: name }))), update() {} };
  }

  async function look() {
    remember(await get("history"));
    draw();
  }

  const pace = whileShown(app, LOOK_MS, "The latencies", look);
  return {
    element,
    show: pace.start,
    hide: pace.stop,
    update(fleet) {
      const rows = Object.entries(fleet.latency).sort();
      const cells = ([name, each]) => [
        name,
        { number: count(each.requests) },
        { number: seconds(each.ttft_p50_s) },
        { number: seconds(each.ttft_p95_s) },
        { number: seconds(each.itl_p50_s) },
        { number: seconds(each.itl_p95_s) },
        { number: count(each.rejected) },
        { number: count(each.failed) },
      ];
      syncList(now.body, rows, ([name]) => name, textRow(cells));
      setHidden(now.element, rows.length === 0);
      setHidden(none, rows.length > 0);
    },
  };
}

// A line chart of the last minutes: drawn as SVG, read with pointer or keyboard, and as a table by screen readers.

import { h, setHidden, setText, svg } from "./dom.js";
import { seconds } from "./format.js";

const HEIGHT = 240;
const EDGE = { left: 58, right: 14, top: 12, bottom: 28 };

/** About four round numbers from 0 to at least `most`. */
export function ticks(most) {
  const rough = most / 4;
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((each) => each * size).find((each) => each >= rough);
  const found = [];
  for (let place = 0; place * step < most + step; place += 1) found.push(place * step);
  return found;
}

/**
 * `span_s`: how far back it reaches. update(series, gap_s): series are {name, dashed, colour, points: [[age_s, value]]},
 * oldest first; a line breaks where two points are further apart than `gap_s`.
 */
export function chart(title, span_s) {
  const picture = svg("svg", { role: "img", class: "chart", tabindex: 0, "aria-label": title });
  const frame = svg("g");
  const lines = svg("g");
  const cursor = svg("line", { class: "cursor", y1: EDGE.top, y2: HEIGHT - EDGE.bottom, visibility: "hidden" });
  picture.append(frame, lines, cursor);
  const tip = h("p", { class: "tip", role: "status" });
  const empty = h("p", { class: "chart-empty", text: "No streams in the last minutes." });
  const element = h("div", { class: "chart-box" }, picture, empty, tip);
  let width = 600;
  let series = [];
  let gap = 15;
  let at = null; // age under the cursor

  const x = (age) => EDGE.left + (1 - Math.min(Math.max(age, 0), span_s) / span_s) * (width - EDGE.left - EDGE.right);

  function draw() {
    picture.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    picture.setAttribute("width", String(width));
    picture.setAttribute("height", String(HEIGHT));
    const most = Math.max(0, ...series.flatMap((each) => each.points.map((point) => point[1])));
    setHidden(empty, most > 0);
    const marks = ticks(most || 1);
    const top = marks.at(-1);
    const y = (value) => HEIGHT - EDGE.bottom - (value / top) * (HEIGHT - EDGE.top - EDGE.bottom);
    const grid = document.createDocumentFragment();
    for (const mark of most > 0 ? marks : [0]) {
      grid.append(svg("line", { class: "grid", x1: EDGE.left, x2: width - EDGE.right, y1: y(mark), y2: y(mark) }));
      grid.append(svg("text", { class: "axis", x: EDGE.left - 8, y: y(mark) + 4, "text-anchor": "end" }, mark ? seconds(mark) : "0"));
    }
    const every = width < 480 ? 300 : 180;
    for (let age = 0; age <= span_s; age += every) {
      const words = age === 0 ? "now" : age === span_s ? `−${age / 60} min` : `−${age / 60}`;
      grid.append(svg("text", { class: "axis", x: x(age), y: HEIGHT - 8, "text-anchor": age === 0 ? "end" : age === span_s ? "start" : "middle" }, words));
    }
    frame.replaceChildren(grid);
    const drawn = document.createDocumentFragment();
    for (const each of series) {
      let path = "";
      each.points.forEach(([age, value], number, all) => {
        const joined = number > 0 && all[number - 1][0] - age <= gap;
        const goesOn = number + 1 < all.length && age - all[number + 1][0] <= gap;
        const [left, top] = [x(age).toFixed(1), y(value).toFixed(1)];
        path += `${joined ? "L" : "M"}${left} ${top}`;
        // Alone it would not be seen as a line.
        if (!joined && !goesOn) drawn.append(svg("circle", { class: `dot colour-${each.colour}`, cx: left, cy: top, r: each.dashed ? 2 : 3 }));
      });
      drawn.append(svg("path", { class: `line colour-${each.colour}${each.dashed ? " dashed" : ""}`, d: path }));
    }
    lines.replaceChildren(drawn);
    point();
  }

  function point() {
    const ages = [...new Set(series.flatMap((each) => each.points.map((one) => one[0])))];
    if (at === null || !ages.length) {
      cursor.setAttribute("visibility", "hidden");
      return setText(tip, "");
    }
    const nearest = ages.reduce((best, age) => (Math.abs(age - at) < Math.abs(best - at) ? age : best));
    cursor.setAttribute("visibility", "visible");
    cursor.setAttribute("x1", x(nearest));
    cursor.setAttribute("x2", x(nearest));
    const words = series.flatMap((each) => {
      const found = each.points.find((one) => one[0] === nearest);
      return found ? [`${each.name} ${seconds(found[1])}`] : [];
    });
    const ago = nearest < 1 ? "now" : `${seconds(nearest)} ago`;
    return setText(tip, `${ago}: ${words.join(", ")}`);
  }

  picture.addEventListener("pointermove", (event) => {
    const place = event.clientX - picture.getBoundingClientRect().left;
    at = (1 - (place - EDGE.left) / (width - EDGE.left - EDGE.right)) * span_s;
    point();
  });
  picture.addEventListener("pointerleave", () => {
    at = null;
    point();
  });
  picture.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: gap, ArrowRight: -gap, Home: span_s, End: -span_s }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    at = Math.min(Math.max((at ?? 0) + step, 0), span_s);
    point();
  });
  new ResizeObserver(([entry]) => {
    const now = Math.floor(entry.contentRect.width);
    if (now > 0 && now !== width) {
      width = now;
      draw();
    }
  }).observe(element);

  return {
    element,
    update(next, gap_s) {
      series = next;
      gap = gap_s;
      draw();
    },
  };
}

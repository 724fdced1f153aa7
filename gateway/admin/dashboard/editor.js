// A text editor with line numbers and faults at their lines: a plain textarea, so that every keyboard, screen reader and
// undo works, with numbers beside it and marks behind it.

import { h, setAttribute } from "./dom.js";

const MAX_MARKS = 100;

/** {element, area, value, setProblems, jump}. `onInput` is called for every change by the user. */
export function editor(label, describedBy, onInput) {
  const area = h("textarea", {
    wrap: "off",
    spellcheck: "false",
    autocomplete: "off",
    autocapitalize: "off",
    "aria-label": label,
    "aria-describedby": describedBy,
  });
  const numbers = h("pre", { class: "numbers" });
  const gutter = h("div", { class: "gutter", "aria-hidden": "true" }, numbers);
  const marks = h("div", { class: "marks" });
  const behind = h("div", { class: "behind", "aria-hidden": "true" }, marks);
  const element = h("div", { class: "editor" }, gutter, h("div", { class: "pane" }, behind, area));
  let lines = 0;
  let problems = [];

  function lineHeight() {
    return parseFloat(getComputedStyle(area).lineHeight);
  }

  function number() {
    const count = area.value.split("\n").length;
    if (count === lines) return;
    lines = count;
    numbers.textContent = Array.from({ length: count }, (_, place) => place + 1).join("\n");
  }

  function scroll() {
    marks.style.transform = `translate(${-area.scrollLeft}px, ${-area.scrollTop}px)`;
    numbers.style.transform = `translateY(${-area.scrollTop}px)`;
  }

  function mark() {
    const height = lineHeight();
    const texts = area.value.split("\n");
    const byLine = new Map();
    for (const one of problems) {
      if (one.line !== null && !byLine.has(one.line)) byLine.set(one.line, one);
    }
    const found = [...byLine.values()].slice(0, MAX_MARKS).map((one) => {
      const words = h("span", { class: "mark-words", text: one.message });
      words.style.marginLeft = `${(texts[one.line - 1] ?? "").length + 3}ch`;
      const strip = h("div", { class: "mark", "data-line": one.line }, words);
      strip.style.top = `${(one.line - 1) * height}px`;
      strip.style.height = `${height}px`;
      return strip;
    });
    marks.replaceChildren(...found);
    setAttribute(area, "aria-invalid", problems.length ? "true" : null);
  }

  area.addEventListener("input", () => {
    number();
    onInput();
  });
  area.addEventListener("scroll", scroll);
  number();
  return {
    element,
    area,
    get value() {
      return area.value;
    },
    set value(text) {
      area.value = text;
      number();
    },
    setProblems(found) {
      problems = found;
      mark();
    },
    /** Put the caret at a place, counted from 1. */
    jump(line, column) {
      const texts = area.value.split("\n").slice(0, line);
      const last = texts.pop() ?? "";
      const at = texts.reduce((sum, text) => sum + text.length + 1, 0) + Math.min((column ?? 1) - 1, last.length);
      area.focus();
      area.setSelectionRange(at, at);
      area.scrollTop = Math.max(0, (line - 4) * lineHeight());
      scroll();
    },
  };
}

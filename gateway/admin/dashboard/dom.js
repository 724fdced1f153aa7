// Making and changing elements. Text only ever goes in as text: nothing here parses markup.

/** An element: `props` are attributes, `on…` handlers, `class` and `text`; children are nodes or text. */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") element.className = value;
    else if (name === "text") element.textContent = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** The same for SVG. */
export function svg(tag, attributes = {}, text = null) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  if (text !== null) element.textContent = text;
  return element;
}

/** Change text only where it differs: the browser lays out nothing anew for what stays. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** The same for an attribute; null takes it off. */
export function setAttribute(element, name, value) {
  if (value === null || value === false) {
    if (element.hasAttribute(name)) element.removeAttribute(name);
  } else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, String(value));
}

export function setHidden(element, hidden) {
  if (element.hidden !== hidden) element.hidden = hidden;
}

const rowsOf = new WeakMap();

/**
 * Bring the children of `parent` in line with `items`, touching only what differs.
 * `make(item)` gives {element, update(item)}; `keyOf(item)` says which row an item is.
 */
export function syncList(parent, items, keyOf, make) {
  const rows = rowsOf.get(parent) ?? new Map();
  rowsOf.set(parent, rows);
  const wanted = new Set(items.map(keyOf));
  for (const [key, row] of rows) {
    if (!wanted.has(key)) {
      row.element.remove();
      rows.delete(key);
    }
  }
  let place = parent.firstChild;
  let fresh = document.createDocumentFragment(); // neighbours that are new go in together
  for (const item of items) {
    const key = keyOf(item);
    let row = rows.get(key);
    if (row === undefined) {
      row = make(item);
      rows.set(key, row);
      row.update(item);
      fresh.append(row.element);
      continue;
    }
    if (fresh.childNodes.length) {
      parent.insertBefore(fresh, place);
      fresh = document.createDocumentFragment();
    }
    row.update(item);
    if (row.element === place) place = place.nextSibling;
    else parent.insertBefore(row.element, place);
  }
  if (fresh.childNodes.length) parent.insertBefore(fresh, place);
}

/** A bar with its words: {element, update(value, most, text, level)}; without `most` there is no bar to fill. */
export function meter(label) {
  const name = h("span", { class: "meter-name", text: label });
  const words = h("span", { class: "meter-words" });
  const fill = h("span", { class: "meter-fill" });
  const bar = h("span", { class: "meter-bar", role: "meter", "aria-label": label, "aria-valuemin": 0 }, fill);
  const element = h("div", { class: "meter" }, name, words, bar);
  let last = "";
  return {
    element,
    update(value, most, text, level = "") {
      const seen = `${value}|${most}|${text}|${level}`;
      if (seen === last) return;
      last = seen;
      setText(words, text);
      const share = most > 0 ? Math.min(Math.max(value / most, 0), 1) : 0;
      fill.style.transform = `scaleX(${share.toFixed(4)})`;
      setAttribute(bar, "data-level", level || (share >= 0.95 ? "full" : share >= 0.8 ? "high" : "fine"));
      setAttribute(bar, "aria-valuemax", most > 0 ? most : 1);
      setAttribute(bar, "aria-valuenow", most > 0 ? Math.min(value, most) : 0);
      setAttribute(bar, "aria-valuetext", text);
    },
  };
}

/** A table that scrolls by itself where it is wider than the screen. Returns {element, body, table}. */
export function table(caption, ...columns) {
  const body = h("tbody");
  const heads = columns.map((name) =>
    h("th", { scope: "col", class: name.startsWith("#") ? "number" : null, text: name.replace(/^#/, "") }),
  );
  const inner = h("table", {}, h("caption", { class: "unseen", text: caption }), h("thead", {}, h("tr", {}, ...heads)), body);
  const element = h("div", { class: "scroll", role: "region", tabindex: 0, "aria-label": caption }, inner);
  return { element, body, table: inner };
}

/** A row maker for `syncList` whose cells are texts; `cells(item)` gives them in order, numbers as {number: text}. */
export function textRow(cells) {
  return (item) => {
    const parts = cells(item).map((cell) => h("td", { class: typeof cell === "object" ? "number" : null }));
    return {
      element: h("tr", {}, ...parts),
      update(now) {
        cells(now).forEach((cell, place) => setText(parts[place], typeof cell === "object" ? cell.number : cell));
      },
    };
  };
}

/** Ask before something is done; resolves to whether it was confirmed. `body` are nodes. */
export function confirm(title, action, ...body) {
  return new Promise((resolve) => {
    const heading = h("h2", { id: "confirm-title", text: title });
    const yes = h("button", { type: "submit", class: "primary", value: "yes", text: action });
    const no = h("button", { type: "submit", value: "no", formnovalidate: true, text: "Cancel" });
    const form = h("form", { method: "dialog" }, heading, ...body, h("div", { class: "row" }, yes, no));
    const dialog = h("dialog", { "aria-labelledby": "confirm-title" }, form);
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
    document.body.append(dialog);
    dialog.showModal();
    no.focus();
  });
}

// A parsed policy as YAML text, for editing a revision that leaves everything to the defaults.

const PLAIN = /^[A-Za-z_][A-Za-z0-9_./-]*$/;
const WORDS = new Set(["true", "false", "null", "yes", "no", "on", "off", "y", "n"]);

function scalar(value) {
  if (typeof value === "string") return PLAIN.test(value) && !WORDS.has(value.toLowerCase()) ? value : JSON.stringify(value);
  return JSON.stringify(value);
}

const isFlat = (value) => value === null || typeof value !== "object" || Object.keys(value).length === 0;

function inline(value) {
  if (value === null || typeof value !== "object") return scalar(value);
  if (Array.isArray(value)) return `[${value.map(inline).join(", ")}]`;
  return `{${Object.entries(value).map(([key, each]) => `${scalar(key)}: ${inline(each)}`).join(", ")}}`;
}

function block(value, indent) {
  const pad = " ".repeat(indent);
  return Object.entries(value).map(([key, each]) => {
    const head = `${pad}${scalar(key)}:`;
    const short = `${head} ${inline(each)}`;
    if (isFlat(each) || (short.length <= 100 && Object.values(each).every(isFlat))) return short;
    if (Array.isArray(each)) return [head, ...each.map((one) => `${pad}  - ${inline(one)}`)].join("\n");
    return `${head}\n${block(each, indent + 2)}`;
  }).join("\n");
}

/** The text of a mapping. */
export function toYaml(value) {
  return `${block(value, 0)}\n`;
}

// Numbers as people read them.

/** A time that passed or is promised, in seconds. */
export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0.0005) return "0 ms";
  if (value < 0.995) return `${value < 0.01 ? (value * 1000).toFixed(1) : Math.round(value * 1000)} ms`;
  if (value < 99.5) return `${value.toFixed(value < 9.95 ? 1 : 0)} s`;
  if (value < 5400) return `${Math.round(value / 60)} min`;
  return value < 172800 ? `${Math.round(value / 3600)} h` : `${Math.round(value / 86400)} d`;
}

export function count(value) {
  return value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en");
}

/** Large amounts, short. */
export function amount(value) {
  if (value === null || value === undefined) return "–";
  if (value < 1000) return String(Math.round(value));
  const [size, unit] = value < 1e6 ? [1e3, "k"] : value < 1e9 ? [1e6, "M"] : [1e9, "G"];
  const scaled = value / size;
  return `${scaled < 9.95 ? scaled.toFixed(1) : Math.round(scaled)} ${unit}`;
}

export function percent(share) {
  if (share === null || share === undefined) return "–";
  if (share > 0 && share < 0.001) return "< 0.1 %";
  return `${(share * 100).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;
}

export function clockTime(date = new Date()) {
  return date.toLocaleTimeString("en-GB");
}

/** When something was made, from seconds since 1970. */
export function when(stamp) {
  const date = new Date(stamp * 1000);
  const day = date.toDateString() === new Date().toDateString() ? "" : `${date.toLocaleDateString("en-CA")} `;
  return day + clockTime(date);
}

/** "1 worker", "2 workers". */
export function plural(number, word) {
  return `${count(number)} ${word}${number === 1 ? "" : "s"}`;
}

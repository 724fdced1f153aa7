// The frame around the views: which one is shown, the beat that asks for the fleet, login, theme, what is said.

import { accessView } from "./access.js";
import { ApiError, LostError, call, get, link, setToken, token } from "./api.js";
import { h, setAttribute, setHidden, setText } from "./dom.js";
import { fleetView } from "./fleet.js";
import { clockTime, seconds } from "./format.js";
import { latencyView } from "./latency.js";
import { policyView } from "./policy.js";
import { queuesView } from "./queues.js";
import { requestsView } from "./requests.js";

const BEAT_MS = 1000;
const STALE_MS = 4000; // older than this, what is shown looks old
const MAX_PAUSE_MS = 5000;
const MAX_SAID = 4;
const SAID_MS = 4000; // it lies over the page: no longer than it takes to read

const byId = (id) => document.getElementById(id);
const app = { say, act, needToken, role: null };
const views = new Map();
let shown = null;
let fleet = null;
let shownAt = null; // when what is shown came

// -- what is said ------------------------------------------------------------------------------------------------------

/** Tell the user something, seen and spoken; a fault stays until it is closed. */
function say(text, kind = "done") {
  const close = h("button", { type: "button", class: "plain", "aria-label": "Close this message", text: "×" });
  const one = h("p", { class: `toast ${kind}` }, h("span", { text }), close);
  close.addEventListener("click", () => one.remove());
  const box = byId("said");
  while (box.children.length >= MAX_SAID) box.firstChild.remove();
  box.append(one);
  if (kind === "done") setTimeout(() => one.remove(), SAID_MS);
}

/** Make a change; what stands against it is said. Resolves to the answer, or null. `expected`: statuses to throw. */
async function act(what, work, expected = []) {
  try {
    return await work();
  } catch (error) {
    if (error instanceof ApiError) {
      if (expected.includes(error.status)) throw error;
      if (error.status === 401) needToken(`${what} needs a token.`);
      else say(`${what}: ${error.message}`, "fault");
    } else if (error instanceof LostError) say(`${what}: the gateway does not answer. Nothing is known of it.`, "fault");
    else throw error;
    return null;
  }
}

// -- login -------------------------------------------------------------------------------------------------------------

const login = byId("login");

function needToken(why = "") {
  setText(byId("login-error"), why);
  byId("logout").hidden = token() === null;
  if (!login.open) {
    byId("token").value = "";
    login.showModal();
  }
}

function showRole() {
  setHidden(byId("role").firstElementChild, app.role === null);
  setText(byId("role").lastElementChild, app.role === null ? "Log in" : app.role);
}

async function learnRole() {
  if (token() === null) return;
  try {
    app.role = (await get("whoami")).role;
  } catch (error) {
    if (!(error instanceof ApiError)) return; // asked again when the gateway is back
    setToken(null);
    app.role = null;
  }
  showRole();
}

byId("role").addEventListener("click", () => needToken());
byId("login-cancel").addEventListener("click", () => login.close());
byId("logout").addEventListener("click", () => {
  setToken(null);
  app.role = null;
  showRole();
  login.close();
  say("Logged out.");
});
byId("login-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const given = byId("token").value.trim();
  // Fetch refuses header values beyond latin-1 with a TypeError of its own.
  if (!/^[\x21-\x7e]+$/.test(given)) return setText(byId("login-error"), "A token has no blanks and no letters beyond ASCII.");
  try {
    const { data } = await call("GET", "whoami", { as: given });
    setToken(given);
    app.role = data.role;
    showRole();
    login.close();
    say(`Logged in with role ${data.role}.`);
    wake();
  } catch (error) {
    setText(byId("login-error"), error instanceof LostError ? "The gateway does not answer." : error.message);
    byId("token").select();
  }
});

// -- theme -------------------------------------------------------------------------------------------------------------

const THEMES = ["system", "light", "dark"];

function setTheme(theme) {
  setAttribute(document.documentElement, "data-theme", theme === "system" ? null : theme);
  setText(byId("theme").lastElementChild, theme);
  byId("theme").title = "Light, dark, or as the system has it";
}

let theme = THEMES.includes(localStorage.getItem("headrace-theme")) ? localStorage.getItem("headrace-theme") : "system";
byId("theme").addEventListener("click", () => {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  localStorage.setItem("headrace-theme", theme);
  setTheme(theme);
});
setTheme(theme);

// -- views -------------------------------------------------------------------------------------------------------------

for (const [name, title, make] of [
  ["fleet", "Fleet", fleetView],
  ["queues", "Queues", queuesView],
  ["latency", "Latency", latencyView],
  ["policy", "Policy", policyView],
  ["requests", "Requests", requestsView],
  ["access", "Access", accessView],
]) {
  const view = make(app);
  const heading = h("h1", { class: "unseen", id: `${name}-title`, text: title });
  const section = h("section", { id: `view-${name}`, class: "view", "aria-labelledby": heading.id, hidden: true }, heading, view.element);
  const tab = h("a", { href: `#${name}`, text: title });
  byId("main").append(section);
  byId("tabs").append(h("li", {}, tab));
  views.set(name, { view, section, tab, title });
}

function route() {
  const asked = location.hash.slice(1);
  if (asked === "main") return byId("main").focus(); // the skip link
  const [name, rest = ""] = asked.split(/\/(.*)/s);
  const next = views.get(name) ?? views.get("fleet");
  if (shown !== next) {
    if (shown !== null) {
      shown.section.hidden = true;
      setAttribute(shown.tab, "aria-current", null);
      shown.view.hide?.();
    }
    shown = next;
    next.section.hidden = false;
    setAttribute(next.tab, "aria-current", "page");
    document.title = `${next.title} – Headrace`;
    next.view.show?.();
    if (fleet !== null) next.view.update?.(fleet);
  }
  if (rest) next.view.open?.(decodeURIComponent(rest));
}

window.addEventListener("hashchange", route);

// -- the beat ----------------------------------------------------------------------------------------------------------

let timer = null;
let failures = 0;
let beating = false;
let nextAt = 0;

function schedule(ms) {
  clearTimeout(timer);
  nextAt = performance.now() + ms;
  timer = document.hidden ? null : setTimeout(beat, ms); // nobody looks: nothing is asked
}

function wake() {
  if (!beating) schedule(0);
}

async function beat() {
  beating = true;
  const began = performance.now();
  let pause = BEAT_MS;
  try {
    fleet = await get("fleet");
    shownAt = new Date();
    if (failures > 0) {
      say("The gateway answers again.");
      failures = 0;
    }
    if (app.role === null) void learnRole();
    showFacts();
    shown.view.update?.(fleet);
    // A large fleet on a slow machine must not keep the browser busy all the time.
    pause = Math.max(BEAT_MS, 5 * (performance.now() - began));
  } catch (error) {
    if (error instanceof LostError) {
      failures += 1;
      pause = Math.min(BEAT_MS * failures, MAX_PAUSE_MS);
    } else if (error instanceof ApiError && error.status === 401) {
      needToken("This gateway shows itself to those with a token only.");
      pause = MAX_PAUSE_MS;
    } else if (error instanceof ApiError) {
      say(`The gateway refuses to show its fleet: ${error.message}`, "fault");
      pause = MAX_PAUSE_MS;
    } else throw error;
  } finally {
    beating = false;
    schedule(pause);
    showLink();
  }
}

function showFacts() {
  const words = [
    `fleet ${fleet.fleet}`,
    `policy revision ${fleet.revision.number}`,
    `${fleet.in_flight} running`,
    `${fleet.queue.queued} waiting`,
    `version ${fleet.version}, up ${seconds(fleet.uptime_s)}`,
  ];
  const odd = !fleet.ready || fleet.why.includes(";");
  if (odd) words.unshift(fleet.why);
  setAttribute(byId("facts"), "data-warn", odd);
  setText(byId("facts"), words.join(" · "));
}

/** Whether what is shown is of now: the badge, the banner, and the look of the data. */
function showLink() {
  const age = shownAt === null ? null : Date.now() - shownAt.getTime();
  const old = age === null || age > STALE_MS;
  const lost = link.lostSince !== null;
  const badge = byId("link");
  const state = lost ? "lost" : old ? "stale" : fleet.ready ? "live" : "unready";
  const words = {
    lost: age === null ? "gateway lost" : `gateway lost, data ${seconds(age / 1000)} old`,
    stale: age === null ? "connecting" : `data ${seconds(age / 1000)} old`,
    live: "live",
    unready: "live, not ready",
  };
  setAttribute(badge, "data-state", state);
  setText(badge, words[state]);
  setAttribute(document.body, "data-stale", old && age !== null);
  const banner = byId("lost");
  setHidden(banner, !lost);
  if (lost) {
    const since = shownAt === null ? "Nothing has been seen of it yet." : `What you see is from ${clockTime(shownAt)}.`;
    setText(banner, `The gateway does not answer. ${since} Trying again until it does.`);
  }
}

setInterval(showLink, 500);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && !beating) schedule(Math.max(0, nextAt - performance.now()));
});
window.addEventListener("online", wake);

route();
void learnRole();
void beat();

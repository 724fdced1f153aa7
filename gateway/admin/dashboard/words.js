// What a worker is doing, in words.

import { seconds } from "./format.js";

const STATES = {
  ready: "ready",
  starting: "starting",
  warming: "warming up",
  draining: "draining",
  ejected: "ejected",
  gone: "gone",
};

/** What a worker's state is, in words. */
export function stateWords(worker) {
  if (worker.state === "draining") return worker.leases ? `draining: ${worker.leases} left` : "drained: empty";
  if (worker.state === "ejected" && worker.returns_in_s) return `ejected for ${seconds(worker.returns_in_s)}`;
  return STATES[worker.state] ?? worker.state;
}

const FRESH_S = 2; // agents report once a second: below this the age says nothing, and would change with every look

/** How old the worker's own word about itself is. */
export function reportWords(worker) {
  if (worker.signal_age_s === null) return "no report";
  return worker.signal_age_s < FRESH_S ? `report under ${FRESH_S} s old` : `report ${seconds(worker.signal_age_s)} old`;
}

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

/** How old the worker's own word about itself is. */
export function reportWords(worker) {
  return worker.signal_age_s === null ? "no report" : `report ${seconds(worker.signal_age_s)} old`;
}

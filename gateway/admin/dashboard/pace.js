// Doing something again and again, as long as somebody looks.

import { ApiError, LostError } from "./api.js";

/**
 * `work` at once and then every `ms` while started and the page is visible; never twice at a time.
 * No answer is no fault here: the frame says it. What the gateway refuses is said once for each reason.
 */
export function whileShown(app, ms, what, work) {
  let timer = null;
  let on = false;
  let running = false;
  let said = "";

  async function turn() {
    timer = null;
    if (!on || running) return;
    running = true;
    try {
      if (!document.hidden) {
        await work();
        said = "";
      }
    } catch (error) {
      if (error instanceof ApiError && error.status !== 401) {
        if (said !== error.message) app.say(`${what}: ${error.message}`, "fault");
        said = error.message;
      } else if (!(error instanceof ApiError || error instanceof LostError)) throw error;
    } finally {
      running = false;
      if (on && timer === null) timer = setTimeout(turn, ms);
    }
  }

  return {
    start() {
      on = true;
      if (!running && timer === null) void turn();
    },
    stop() {
      on = false;
      clearTimeout(timer);
      timer = null;
    },
    /** Do it now, beside its pace. */
    soon() {
      clearTimeout(timer);
      timer = null;
      void turn();
    },
  };
}

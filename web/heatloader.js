// What the heat map reads over REST: the whole run for each layer's median, the zoomed range for its detail.
// Only when the map is in view, and while the run goes on every few seconds at most.

import { getSeries } from "./api.js";
import { shownRange } from "./state.js";

/** @typedef {import("./state.js").State} State */
/** @typedef {import("./state.js").Range} Range */
/** @typedef {import("./state.js").Action} Action */

export const NORMS = "layer_grad_norm";
const EVERY_MS = 2000;
const SETTLE_MS = 150; // zooming by key comes in bursts
const PIXELS = 500; // up to twice as many rows come back, of every layer

/** @param {() => State} state @param {(action: Action) => void} dispatch @returns {() => void} call it whenever the map may want more */
export function createHeatLoader(state, dispatch) {
  let [known, asked, lastLoad] = ["", "", -Infinity];
  let isWaiting = false;

  /** @param {Range | null} range */
  async function read(range) {
    const { runId, rank } = state();
    const answer = await getSeries(runId, { names: [NORMS], pixels: PIXELS, rank, range });
    const found = answer.series[NORMS];
    dispatch({ type: "norms", rank, range, series: found?.kind === "layers" ? found : null });
  }

  async function load() {
    const { range, norms } = state();
    asked = wish(state());
    lastLoad = performance.now();
    try {
      if (!range || !norms.whole) await read(null);
      if (range) await read(range);
      known = asked;
    } catch {
      // the run's own load tells of a server that is away; the next growth or zoom asks again
    }
    isWaiting = false;
    want();
  }

  function want() {
    const wanted = wish(state());
    if (isWaiting || wanted === known || (wanted === asked && performance.now() < lastLoad + EVERY_MS))
      return;
    isWaiting = true;
    const isGrowth = !state().range && known !== "";
    setTimeout(load, isGrowth ? Math.max(0, lastLoad + EVERY_MS - performance.now()) : SETTLE_MS);
  }

  return want;
}

/** @param {State} state @returns {string} what decides whether there is something new to read */
function wish(state) {
  const { from, to } = shownRange(state);
  return [state.rank, state.range ? "detail" : "whole", from, to].join();
}

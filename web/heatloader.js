// What the heat map reads over REST: the whole run for each layer's median, the zoomed range for its detail.
// Only when the map is in view, and while the run goes on every few seconds at most.

import { getSeries } from "./api.js";
import { firstBadSteps } from "./heat.js";
import { shownMap } from "./layermaps.js";
import { shownRange } from "./state.js";

/** @typedef {import("./state.js").State} State */
/** @typedef {import("./state.js").Range} Range */
/** @typedef {import("./state.js").Action} Action */

const EVERY_MS = 2000;
const SETTLE_MS = 150; // zooming by key comes in bursts
const PIXELS = 500; // up to twice as many rows come back, of every layer

/** @param {() => State} state @param {(action: Action) => void} dispatch @returns {() => void} call it whenever the map may want more */
export function createHeatLoader(state, dispatch) {
  let [known, lastLoad, lastMap, isBusy] = ["", -Infinity, "", false];

  /** @param {Range | null} range @returns {Promise<import("./records.js").LayerSeries | null>} */
  async function read(range) {
    const { runId, rank } = state();
    const name = shownMap(state())?.series ?? "";
    const answer = await getSeries(runId, { names: [name], pixels: PIXELS, rank, range });
    const found = answer.series[name];
    return found?.kind === "layers" ? found : null;
  }

  async function readWhole() {
    const { rank, layerMap } = state();
    const whole = await read(null);
    if (!whole) return;
    const bad = firstBadSteps(whole);
    const onset = bad && bad.from < bad.to ? await read(bad) : null; // one step of those that share a row
    dispatch({ type: "norms", rank, layerMap, whole, onset });
  }

  async function load() {
    const { range, rank, norms, layerMap } = state();
    const wanted = wish(state());
    [lastLoad, lastMap] = [performance.now(), layerMap];
    try {
      if (!range || !norms.whole) await readWhole();
      const series = range && (await read(range));
      if (series) dispatch({ type: "norms-detail", rank, layerMap, range, series });
      known = wanted;
    } catch {
      // the run's own load tells of a server that is away
    }
    isBusy = false; // whoever draws asks again, which nobody does in a hidden tab
  }

  function want() {
    if (isBusy || wish(state()) === known) return;
    isBusy = true;
    const isZoom = state().range !== null && state().norms.whole !== null;
    const pause =
      isZoom || state().layerMap !== lastMap
        ? SETTLE_MS
        : Math.max(SETTLE_MS, lastLoad + EVERY_MS - performance.now());
    setTimeout(load, pause);
  }

  return want;
}

/** @param {State} state @returns {string} what decides whether there is something new to read */
function wish(state) {
  const { from, to } = shownRange(state);
  return [state.layerMap, state.rank, state.range ? "detail" : "whole", from, to].join();
}

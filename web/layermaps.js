// Layer maps: which series of the layers the heat map can show, and the one that it does. Pure.

/** @typedef {import("./state.js").State} State */
/**
 * `isSampled`: measured now and then; what was measured is shown until the next time.
 * `isShare`: 0 .. 1, where a colour is the share itself, not what it is against the layer's median.
 * @typedef {{series: string, title: string, isSampled: boolean, isShare?: boolean}} LayerMap
 */

/** @type {LayerMap[]} */
export const LAYER_MAPS = [
  { series: "layer_grad_norm", title: "Gradient norm", isSampled: false },
  { series: "layer_weight_norm", title: "Weight norm", isSampled: true },
  { series: "layer_update_ratio", title: "Update ratio", isSampled: true },
  { series: "layer_grad_absmax", title: "Largest gradient", isSampled: true },
  { series: "layer_grad_zero_share", title: "Share of gradients that are 0", isSampled: true, isShare: true },
  { series: "layer_activation_absmax", title: "Largest output", isSampled: true },
  { series: "layer_activation_nonfinite", title: "Outputs that are not finite", isSampled: true },
  { series: "layer_dead_share", title: "Share of dead units", isSampled: true, isShare: true },
  { series: "layer_saturated_share", title: "Share of saturated outputs", isSampled: true, isShare: true },
];
export const DEFAULT_MAP = LAYER_MAPS[0].series;

/** @param {State} state @returns {LayerMap[]} those that the run has */
export function mapsOf({ run }) {
  return LAYER_MAPS.filter(({ series }) => run?.layerSeries.includes(series));
}

/** @param {State} state @returns {LayerMap | null} the chosen one, if the run has it, else its first */
export function shownMap(state) {
  const maps = mapsOf(state);
  return maps.find(({ series }) => series === state.layerMap) ?? maps[0] ?? null;
}

// Which layers went bad, in what order: from the layer series around an incident's onset. Pure.

/** @typedef {import("./records.js").AnySeries} AnySeries */
/** @typedef {import("./records.js").LayerSeries} LayerSeries */
/** @typedef {import("./records.js").Incident} Incident */
/** @typedef {import("./state.js").Range} Range */
/**
 * `step` is the first with a non-finite gradient, `count` its elements, `normBefore` the last finite norm.
 * @typedef {{name: string, step: number | null, count: number | null, normBefore: number | null}} BadLayer
 */

export const LAYER_SERIES = ["layer_grad_nonfinite", "layer_grad_norm"];
const BEFORE = 20; // steps of context
const AFTER = 40; // few enough steps that a model of many layers still gets single steps, not buckets

/** @param {Incident} incident @returns {Range} the steps that tell which layer was first */
export function badLayerRange(incident) {
  const bad = incident.nonfiniteStep ?? incident.detectedStep;
  return { from: Math.max(0, Math.min(incident.onsetStep, bad) - BEFORE), to: bad + AFTER };
}

/**
 * The incident's own order first; what it does not name follows by its first bad step.
 * @param {Incident} incident @param {Record<string, AnySeries>} series @returns {BadLayer[]}
 */
export function badLayers(incident, series) {
  const measured = measure(layerSeries(series.layer_grad_nonfinite), layerSeries(series.layer_grad_norm));
  const named = incident.firstBadLayers.map((name) => measured.get(name) ?? unknown(name));
  const rest = [...measured.values()].filter((layer) => !incident.firstBadLayers.includes(layer.name));
  return [...named, ...rest.toSorted((a, b) => (a.step ?? 0) - (b.step ?? 0))];
}

/** @param {string} name @returns {BadLayer} */
function unknown(name) {
  return { name, step: null, count: null, normBefore: null };
}

/** @param {AnySeries | undefined} series @returns {LayerSeries | null} */
function layerSeries(series) {
  return series?.kind === "layers" ? series : null;
}

/** @param {LayerSeries | null} counts @param {LayerSeries | null} norms @returns {Map<string, BadLayer>} */
function measure(counts, norms) {
  /** @type {Map<string, BadLayer>} */
  const found = new Map();
  for (const name of new Set([...(counts?.layers ?? []), ...(norms?.layers ?? [])])) {
    const countAt = counts && firstAt(counts, name, (value) => !(value <= 0));
    const normAt = norms && firstAt(norms, name, (value) => !Number.isFinite(value));
    const step = Math.min(countAt?.step ?? Infinity, normAt?.step ?? Infinity);
    if (step === Infinity) continue;
    found.set(name, {
      name,
      step,
      count: countAt?.value ?? null,
      normBefore: norms && lastNorm(norms, name, step),
    });
  }
  return found;
}

/**
 * @param {LayerSeries} series @param {string} name @param {(value: number) => boolean} isBad
 * @returns {{step: number, value: number} | null}
 */
function firstAt(series, name, isBad) {
  const row = series.step.findIndex((_, i) => {
    const value = cell(series, i, name);
    return value !== null && isBad(value);
  });
  return row < 0 ? null : { step: series.step[row], value: cell(series, row, name) ?? 0 };
}

/** @param {LayerSeries} series @param {string} name @param {number} before @returns {number | null} */
function lastNorm(series, name, before) {
  for (let i = series.step.length - 1; i >= 0; i--) {
    const value = cell(series, i, name);
    if (series.step[i] < before && value !== null && Number.isFinite(value)) return value;
  }
  return null;
}

/** @param {LayerSeries} series @param {number} row @param {string} name @returns {number | null} null where missing */
function cell({ layers, value }, row, name) {
  const at = row * layers.length + layers.indexOf(name);
  return layers.includes(name) && (value.present === null || value.present[at]) ? value.values[at] : null;
}

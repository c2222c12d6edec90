// The view in the address: zoom range, rank, incident and axes travel in the hash, so that a link shows the same.

import { DEFAULT_MAP, LAYER_MAPS } from "./layermaps.js";

/** @typedef {import("./state.js").State} State */
/** @typedef {Pick<State, "range" | "rank" | "incidentId" | "logScale" | "layerMap">} View */

/** @param {string} hash @returns {View} what the hash says; what it cannot mean is left at its default */
export function viewOf(hash) {
  const query = new URLSearchParams(hash.replace(/^#/, ""));
  const [from, to] = [wholeNumber(query.get("from")), wholeNumber(query.get("to"))];
  /** @type {Record<string, boolean>} */
  const logScale = {};
  for (const name of (query.get("log") ?? "").split(",").filter(Boolean)) logScale[name] = true;
  for (const name of (query.get("linear") ?? "").split(",").filter(Boolean)) logScale[name] = false;
  return {
    range: from !== null && to !== null && from < to ? { from, to } : null,
    rank: wholeNumber(query.get("rank")) ?? 0,
    incidentId: query.get("incident"),
    logScale,
    layerMap: LAYER_MAPS.find(({ series }) => series === query.get("layers"))?.series ?? DEFAULT_MAP,
  };
}

/** @param {string | null} text @returns {number | null} */
function wholeNumber(text) {
  return text !== null && /^\d{1,16}$/.test(text) ? Number(text) : null;
}

/** @param {View} view @returns {string} with its leading "#", or "" for the default view */
export function hashOf({ range, rank, incidentId, logScale, layerMap }) {
  const query = new URLSearchParams();
  if (range) {
    query.set("from", String(range.from));
    query.set("to", String(range.to));
  }
  if (rank) query.set("rank", String(rank));
  if (incidentId) query.set("incident", incidentId);
  if (layerMap !== DEFAULT_MAP) query.set("layers", layerMap);
  const chosen = (/** @type {boolean} */ log) =>
    Object.keys(logScale)
      .filter((name) => logScale[name] === log)
      .join(",");
  if (chosen(true)) query.set("log", chosen(true));
  if (chosen(false)) query.set("linear", chosen(false));
  const text = query.toString();
  return text && `#${text}`;
}

// Traces: from tracks to the lines, dots and stems that plotly draws. Pure; at most 2,000 points a trace.

import { counted, number, whole } from "./format.js";
import { compacted } from "./track.js";

/** @typedef {import("./instruments.js").Chart} Chart */
/** @typedef {import("./palette.js").Palette} Palette */
/** @typedef {import("./track.js").Track} Track */
/** @typedef {{x: number[], y: (number | null)[]}} Line */

const FEW_POINTS = 60; // so few are drawn as dots, too
const MAX_STEMS = 600; // three points each
/** Stems of buckets: the fewer of their steps are above 0, the paler. */
const TONES = [0.25, 0.5, 0.75, 1];
const PALEST = 0.25;
const QUIET = { type: "scatter", hoverinfo: "skip", showlegend: false };

/** @param {{x: (number|null)[], y: (number|null)[]}} outline @param {Palette} colors */
export function envelopeTrace(outline, colors) {
  const line = { width: 1, color: colors["accent-edge"] }; // a spike of one step is an edge only
  return { ...QUIET, mode: "lines", ...outline, fill: "toself", fillcolor: colors["accent-tint"], line };
}

/** @param {Line} points @param {Chart} chart @param {Palette} colors */
export function lineTrace(points, chart, colors) {
  const line = { width: 1.6, color: colors.accent, shape: chart.shape, simplify: false };
  const hovertemplate = "step %{x:,d}<br><b>%{y:.6~g}</b><extra></extra>";
  return { ...QUIET, mode: "lines", ...points, line, hoverinfo: "x+y", hovertemplate, connectgaps: false };
}

/** A point between two breaks has no line: a dot shows it. @param {Line} line @param {Palette} colors */
export function dotTrace({ x, y }, colors) {
  const isFew = x.length <= FEW_POINTS;
  const isAlone = (/** @type {number} */ i) => (y[i - 1] ?? null) === null && (y[i + 1] ?? null) === null;
  const kept = x.map((_, i) => i).filter((i) => y[i] !== null && (isFew || isAlone(i)));
  const marker = { size: 4.5, color: colors.accent };
  return { ...QUIET, mode: "markers", x: kept.map((i) => x[i]), y: kept.map((i) => y[i]), marker };
}

/**
 * Values that came at some steps only, such as a validation: a point each, and a line that leads from one to the next.
 * @param {Line} points @param {string} name @param {Palette} colors
 */
export function pointsTrace({ x, y }, name, colors) {
  const marker = { size: 6, color: colors.surface, line: { width: 1.6, color: colors.text } };
  const hovertemplate = `${name}, step %{x:,d}<br><b>%{y:.6~g}</b><extra></extra>`;
  const line = { width: 1.2, color: colors.text };
  return { ...QUIET, name, mode: "lines+markers", x, y, marker, line, hoverinfo: "x+y", hovertemplate };
}

/** What a later session took another way from. @param {Line} points @param {Palette} colors */
export function ghostTrace(points, colors) {
  const line = { width: 1.2, color: colors.missing, simplify: false };
  return { ...QUIET, name: "earlier session", mode: "lines", ...points, opacity: 0.75, line };
}

/**
 * Stems where the count is above 0 and nothing where it is 0, so that the ink is as dense as the steps are.
 * @param {Track} track @param {boolean} isLog @param {Palette} colors @returns {object[]}
 */
export function stemTraces(track, isLog, colors) {
  const filled = (/** @type {Track} */ given) => given.step.map((_, i) => i).filter((i) => given.max[i] > 0);
  const shown = filled(track).length <= MAX_STEMS ? track : compacted(track, MAX_STEMS);
  const stems = filled(shown);
  const toneOf = (/** @type {number} */ i) => TONES.find((tone) => shareOf(shown, i) <= tone) ?? 1;
  const drawn = TONES.flatMap((tone) => {
    const of = stems.filter((i) => toneOf(i) === tone);
    return of.length ? [stemTrace(shown, of, PALEST + (1 - PALEST) * tone, isLog, colors)] : [];
  });
  return [...drawn, topTrace(shown, stems, colors)];
}

/** @param {Track} track @param {number[]} at @param {number} opacity @param {boolean} isLog @param {Palette} colors */
function stemTrace(track, at, opacity, isLog, colors) {
  const foot = isLog ? 0.5 : 0; // there is no 0 on a logarithmic axis, and a count is at least 1
  const line = { width: 1, color: colors.accent, simplify: false };
  const x = at.flatMap((i) => [track.step[i], track.step[i], null]);
  const y = at.flatMap((i) => [foot, track.max[i], null]);
  return { ...QUIET, name: "stems", mode: "lines", x, y, opacity, line, connectgaps: false };
}

/** @param {Track} track @param {number[]} at @param {Palette} colors */
function topTrace(track, at, colors) {
  // Of many, dots would run together to a line of their own: there they only carry what the pointer reads.
  const marker = { size: 4.5, color: colors.accent, opacity: at.length <= FEW_POINTS ? 1 : 0 };
  const points = { x: at.map((i) => track.step[i]), y: at.map((i) => track.max[i]) };
  const text = at.map((i) => stemText(track, i));
  const hover = { text, hoverinfo: "text", hovertemplate: "%{text}<extra></extra>" };
  return { ...QUIET, name: "tops", mode: "markers", ...points, marker, ...hover };
}

/** @param {Track} track @param {number} i @returns {number} of the steps of a bucket, those above 0 */
function shareOf(track, i) {
  return track.above[i] / Math.max(1, track.count[i] - track.missing[i]);
}

/** @param {Track} track @param {number} i @returns {string} */
function stemText(track, i) {
  const most = `<b>${number(track.max[i])}</b>`;
  if (track.count[i] === 1) return `step ${whole(track.step[i])}<br>${most}`;
  const least = track.above[i] < track.aboveMost[i] ? "at least " : "";
  const share = `${least}${whole(track.above[i])} of ${counted(track.count[i], "step")}`;
  return `steps ${whole(track.step[i])} to ${whole(track.lastStep[i])}: ${share}<br>at most ${most}`;
}

// Sparkline: a run's loss in one small SVG, with the non-finite values as marks below. Needs no plotly.

import { svg } from "./dom.js";
import { extentOf, lineOf, marksOf, totalsOf } from "./track.js";
import { glyph, KIND_NAMES } from "./glyphs.js";

/** @typedef {import("./track.js").Track} Track */
/** @typedef {import("./track.js").MarkKind} MarkKind */

const [WIDTH, HEIGHT, PAD] = [180, 36, 3];
const LINE_BOTTOM = HEIGHT - 10; // the marks live below
/** @type {MarkKind[]} */
const KINDS = ["nan", "posinf", "neginf"];

/** @param {Track} track @returns {SVGElement} */
export function sparkline(track) {
  const x = scaleX(track);
  const marks = KINDS.flatMap((kind) => markAt(track, kind, x));
  const label = `loss over ${track.step.length ? track.lastStep.at(-1) : 0} steps${spoken(track)}`;
  return svg(
    "svg",
    { class: "sparkline", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label },
    svg("path", { class: "spark", d: pathOf(track, x) }),
    ...marks,
  );
}

/** @param {Track} track @returns {(step: number) => number} */
function scaleX(track) {
  const [first, last] = [track.step[0] ?? 0, track.lastStep.at(-1) ?? 1];
  return (step) => PAD + ((step - first) / Math.max(1, last - first)) * (WIDTH - 2 * PAD);
}

/** @param {Track} track @param {(step: number) => number} x @returns {string} */
function pathOf(track, x) {
  const extent = extentOf(track);
  if (!extent) return "";
  const isLog = extent[0] > 0 && extent[1] / extent[0] > 1000;
  const scale = isLog ? Math.log : (/** @type {number} */ value) => value;
  const [low, high] = extent.map(scale);
  const y = (/** @type {number} */ value) =>
    LINE_BOTTOM - ((scale(value) - low) / (high - low || 1)) * (LINE_BOTTOM - PAD);
  const line = lineOf(track, []);
  let path = "";
  line.y.forEach((value, i) => {
    if (value === null) return;
    path += `${i && line.y[i - 1] !== null ? "L" : "M"}${x(line.x[i]).toFixed(1)} ${y(value).toFixed(1)}`;
  });
  return path;
}

/** Where a kind first appears: one mark tells it. @param {Track} track @param {MarkKind} kind @param {(step: number) => number} x */
function markAt(track, kind, x) {
  const [first] = marksOf(track, kind, -Infinity, Infinity);
  return first ? [glyph(kind, Math.min(WIDTH - 5, Math.max(5, x(first.step))), HEIGHT - 5, 7)] : [];
}

/** @param {Track} track @returns {string} */
function spoken(track) {
  const totals = totalsOf(track);
  return KINDS.filter((kind) => totals[kind])
    .map((kind) => `, ${totals[kind]} ${KIND_NAMES[kind]}`)
    .join("");
}

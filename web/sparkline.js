// Sparkline: a run's loss in one small SVG, with the non-finite values as marks below. Needs no plotly.

import { svg } from "./dom.js";
import { extentOf, marksOf, totalsOf } from "./track.js";
import { glyph, KIND_NAMES } from "./glyphs.js";

/** @typedef {import("./track.js").Track} Track */
/** @typedef {import("./track.js").MarkKind} MarkKind */

const [WIDTH, HEIGHT, PAD] = [180, 36, 3];
const MARK_SIZE = 7;
const LINE_BOTTOM = HEIGHT - 10; // the marks live below
/** @type {MarkKind[]} */
const KINDS = ["nan", "posinf", "neginf"];

/** @param {Track} track @returns {SVGElement} */
export function sparkline(track) {
  const x = scaleX(track);
  const marks = KINDS.flatMap((kind) =>
    placesOf(track, kind, x).map((place) => glyph(kind, place, HEIGHT - 5, MARK_SIZE)),
  );
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

/**
 * The line through each bucket's smallest and largest value: a spike of one step reaches its full height.
 * @param {Track} track @param {(step: number) => number} x @returns {string}
 */
export function pathOf(track, x) {
  const extent = extentOf(track);
  if (!extent) return "";
  const isLog = extent[0] > 0 && extent[1] / extent[0] > 1000;
  const scale = isLog ? Math.log : (/** @type {number} */ value) => value;
  const [low, high] = extent.map(scale);
  const y = (/** @type {number} */ value) =>
    LINE_BOTTOM - ((scale(value) - low) / (high - low || 1)) * (LINE_BOTTOM - PAD);
  let path = "";
  let before = NaN;
  track.step.forEach((_, i) => {
    for (const value of turnsOf(track, i, before)) {
      path += `${Number.isNaN(before) ? "M" : "L"}${x(track.lastStep[i]).toFixed(1)} ${y(value).toFixed(1)}`;
      before = value;
    }
    if (Number.isNaN(track.last[i])) before = NaN;
  });
  return path;
}

/** What the line passes in one bucket, the extreme that is nearer first. @param {Track} track @param {number} i @param {number} before @returns {number[]} */
function turnsOf(track, i, before) {
  const [min, max, last] = [track.min[i], track.max[i], track.last[i]];
  if (Number.isNaN(min)) return [];
  if (min === max) return [min];
  const extremes = Math.abs(before - max) < Math.abs(before - min) ? [max, min] : [min, max];
  return Number.isNaN(last) ? extremes : [...extremes, last];
}

/**
 * Where the marks of a kind stand: one for each bucket that has any, as far as they do not cover each other.
 * @param {Track} track @param {MarkKind} kind @param {(step: number) => number} x @returns {number[]}
 */
export function placesOf(track, kind, x) {
  /** @type {number[]} */
  const places = [];
  for (const mark of marksOf(track, kind, -Infinity, Infinity)) {
    const place = Math.min(WIDTH - 5, Math.max(5, x(mark.step)));
    if (place - (places.at(-1) ?? -Infinity) >= MARK_SIZE) places.push(place);
  }
  return places;
}

/** @param {Track} track @returns {string} */
function spoken(track) {
  const totals = totalsOf(track);
  return KINDS.filter((kind) => totals[kind])
    .map((kind) => `, ${totals[kind]} ${KIND_NAMES[kind]}`)
    .join("");
}

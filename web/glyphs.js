// Glyphs: NaN, +Inf, -Inf and missing, each by a shape, a colour (by CSS class) and a name of its own.

import { h, svg } from "./dom.js";
import { number, whole } from "./format.js";
import { lastValueOf, MARK_KINDS } from "./track.js";

/** @typedef {import("./track.js").MarkKind} MarkKind */
/** @typedef {import("./track.js").Totals} Totals */

/** @type {Record<MarkKind, string>} */
export const KIND_NAMES = { nan: "NaN", posinf: "+Inf", neginf: "−Inf", missing: "missing" };

/** Paths in a square from -1 to 1. @type {Record<MarkKind, string>} */
const SHAPES = {
  nan: "M-1-1L1 1M-1 1L1-1", // a cross
  posinf: "M0-1L1 .9H-1Z", // a triangle that points up
  neginf: "M0 1L1-.9H-1Z", // a triangle that points down
  missing: "M-.9 0H-.3M.3 0H.9", // a broken line
};

/** @param {MarkKind} kind @param {number} x @param {number} y @param {number} size @returns {SVGElement} */
export function glyph(kind, x, y, size) {
  return svg("path", {
    class: `glyph ${kind}`,
    "data-kind": kind,
    d: SHAPES[kind],
    transform: `translate(${x.toFixed(1)} ${y.toFixed(1)}) scale(${size / 2})`,
    "vector-effect": "non-scaling-stroke",
  });
}

/** The newest value in words, whatever it is. @param {import("./track.js").Track} track @returns {string} */
export function latestOf(track) {
  const end = track.step.length - 1;
  if (end < 0) return "";
  if (!Number.isNaN(track.last[end])) return number(track.last[end]);
  const kind = MARK_KINDS.find((name) => track[name][end] > 0);
  return kind && kind !== "missing" ? KIND_NAMES[kind] : number(lastValueOf(track));
}

/** The counts of a series in words and shapes; nothing where all values are finite. @param {Totals} totals */
export function chips(totals) {
  return h(
    "span",
    { class: "chips" },
    ...MARK_KINDS.filter((kind) => totals[kind] > 0).map((kind) =>
      h(
        "span",
        { class: `chip ${kind}`, "data-kind": kind, "data-count": totals[kind] },
        svg("svg", { viewBox: "-7 -7 14 14", "aria-hidden": "true" }, glyph(kind, 0, 0, 9)),
        `${KIND_NAMES[kind]} ${whole(totals[kind])}`,
      ),
    ),
  );
}

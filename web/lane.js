// The lane: NaN, +Inf, -Inf and missing values of a series, on rows of their own below its chart.

import { svg } from "./dom.js";
import { MARGIN } from "./figure.js";
import { whole } from "./format.js";
import { glyph, KIND_NAMES } from "./glyphs.js";
import { MARK_KINDS, marksOf } from "./track.js";

/** @typedef {import("./state.js").Range} Range */
/** @typedef {import("./track.js").Track} Track */
/** @typedef {import("./track.js").MarkKind} MarkKind */
/** @typedef {import("./track.js").Mark} Mark */

const ROW = 20;
const SLOT = 12; // pixels: marks closer than this become one, with their count
const SIZE = 8;

/**
 * The lane for `range` on a chart of `width` pixels, or null where every value is finite and there.
 * @param {Track} track @param {Range} range @param {number} width @returns {SVGElement | null}
 */
export function lane(track, range, width) {
  const plot = Math.max(1, width - MARGIN.left - MARGIN.right);
  const share = (/** @type {number} */ step) => (step - range.from) / (range.to - range.from);
  const x = (/** @type {number} */ step) => MARGIN.left + Math.max(0, share(step)) * plot;
  const rows = MARK_KINDS.map((kind) => ({ kind, marks: marksOf(track, kind, range.from, range.to) }));
  const filled = rows.filter((row) => row.marks.length);
  if (!filled.length) return null;
  const height = filled.length * ROW + 2;
  return svg(
    "svg",
    {
      class: "lane",
      width,
      height,
      viewBox: `0 0 ${width} ${height}`,
      role: "img",
      "aria-label": spoken(filled),
    },
    ...filled.map((row, i) => laneRow(row.kind, thinned(row.marks, x), i * ROW + ROW / 2, width)),
  );
}

/**
 * @param {MarkKind} kind @param {{x: number, end: number, mark: Mark}[]} marks @param {number} y
 * @param {number} width @returns {SVGElement}
 */
function laneRow(kind, marks, y, width) {
  const base = svg("line", { class: "rail", x1: MARGIN.left, x2: width - MARGIN.right, y1: y, y2: y });
  const name = svg("text", { class: `lane-name ${kind}`, x: MARGIN.left - 10, y: y + 4 }, KIND_NAMES[kind]);
  return svg("g", { "data-kind": kind }, base, name, ...marks.map((item) => markAt(kind, item, y)));
}

/** @param {MarkKind} kind @param {{x: number, mark: Mark}} item @param {number} y */
function markAt(kind, { x, mark }, y) {
  const title = svg("title", {}, `${KIND_NAMES[kind]} × ${whole(mark.count)}, ${where(mark)}`);
  return svg(
    "g",
    { class: "mark", "data-kind": kind, "data-count": mark.count },
    title,
    glyph(kind, x, y, SIZE),
  );
}

/** @param {Mark} mark @returns {string} */
function where(mark) {
  return mark.step === mark.lastStep
    ? `step ${whole(mark.step)}`
    : `steps ${whole(mark.step)} to ${whole(mark.lastStep)}`;
}

/**
 * Neighbours that would overlap, put together; the first one's place is kept, for it is the onset.
 * @param {Mark[]} marks @param {(step: number) => number} x @returns {{x: number, end: number, mark: Mark}[]}
 */
export function thinned(marks, x) {
  /** @type {{x: number, end: number, mark: Mark}[]} */
  const out = [];
  for (const mark of marks) {
    const [at, last] = [x(mark.step), out.at(-1)];
    if (last && at < last.end) {
      last.mark = { step: last.mark.step, lastStep: mark.lastStep, count: last.mark.count + mark.count };
    } else out.push({ x: at, end: at + SLOT, mark });
  }
  return out;
}

/** @param {{kind: MarkKind, marks: Mark[]}[]} rows @returns {string} */
function spoken(rows) {
  const total = (/** @type {Mark[]} */ marks) => marks.reduce((sum, mark) => sum + mark.count, 0);
  const parts = rows.map(
    (row) => `${whole(total(row.marks))} ${KIND_NAMES[row.kind]}, first at step ${whole(row.marks[0].step)}`,
  );
  return parts.join("; ");
}

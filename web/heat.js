// The heat map of layers and steps: from a layer series to cells and their colours. Pure.
// A cell is the worst of its steps (NaN, then +Inf, then -Inf, then the largest value), never a mean.

import { clipped, number, whole } from "./format.js";

/** @typedef {import("./records.js").LayerSeries} LayerSeries */
/** @typedef {import("./state.js").Range} Range */
/**
 * Cells row by row, a row for each layer; `kind` is an index into `KINDS`; `source` are the steps that a column's
 * cells were measured in.
 * @typedef {{layers: string[], range: Range, columns: number, value: Float64Array, kind: Uint8Array,
 *   source: Range[]}} Grid
 * @typedef {[number, number, number]} Rgb
 * @typedef {{low: Rgb, middle: Rgb, high: Rgb, nan: Rgb, posinf: Rgb, neginf: Rgb}} HeatColors
 */

/** The higher one wins where steps share a cell. */
export const KINDS = /** @type {const} */ (["missing", "finite", "neginf", "posinf", "nan"]);
const [MISSING, FINITE, NEGINF, POSINF, NAN] = [0, 1, 2, 3, 4];
export const DECADES = 2; // from the layer's own median to the end of the scale, either way
const KIND_WORDS = { nan: "NaN", posinf: "+Inf", neginf: "−Inf" };
const MAX_NAMED = 2; // layers in a sentence
const MAX_NAME = 60; // characters of a layer there

/** @param {number} value @returns {number} */
function kindOf(value) {
  if (Number.isNaN(value)) return NAN;
  if (value === Infinity) return POSINF;
  return value === -Infinity ? NEGINF : FINITE;
}

/** @param {LayerSeries} series @returns {Range} the steps that it has */
export function extentOf({ step, lastStep }) {
  return { from: step[0] ?? 0, to: lastStep.at(-1) ?? 0 };
}

/**
 * @param {LayerSeries} series @param {Range} range both ends included
 * @param {number} maxColumns @returns {Grid} a column for each step where they fit, else for as many as must share
 */
export function gridOf(series, range, maxColumns) {
  const span = range.to - range.from + 1;
  const columns = Math.max(1, Math.min(maxColumns, span));
  const cells = series.layers.length * columns;
  const grid = {
    layers: series.layers,
    range,
    columns,
    value: new Float64Array(cells),
    kind: new Uint8Array(cells),
    source: [...Array(columns).keys()].map((column) => stepsOf({ range, columns }, column)),
  };
  const columnOf = (/** @type {number} */ step) => Math.floor(((step - range.from) * columns) / span);
  series.step.forEach((step, row) => {
    const last = series.lastStep[row];
    const to = columnOf(Math.min(last, range.to));
    for (let column = columnOf(Math.max(step, range.from)); column <= to; column++) {
      putRow(grid, series, row, column);
    }
  });
  return grid;
}

/**
 * Show what was measured until the next time, in a grid of what is measured now and then.
 * @param {Grid} grid @param {LayerSeries} whole tells what was measured before the range @returns {Grid}
 */
export function held(grid, whole) {
  const { layers, columns, kind } = grid;
  const isEmpty = (/** @type {number} */ column) =>
    layers.every((_, layer) => kind[layer * columns + column] === MISSING);
  if (isEmpty(0)) putBefore(grid, whole);
  for (let column = 1; column < columns; column++)
    if (isEmpty(column)) copyColumn(grid, column - 1, grid, column);
  return grid;
}

/** @param {Grid} grid @param {LayerSeries} whole puts its last row before the range into the first column */
function putBefore(grid, whole) {
  const isBefore = (/** @type {number} */ row) =>
    whole.lastStep[row] < grid.range.from && whole.layers.some((_, layer) => isPresent(whole, row, layer));
  const row = [...whole.step.keys()].findLast(isBefore);
  if (row === undefined || whole.layers.join() !== grid.layers.join()) return;
  const steps = { from: whole.step[row], to: whole.lastStep[row] };
  copyColumn({ ...gridOf(whole, steps, 1), source: [steps] }, 0, grid, 0);
}

/**
 * Leave out the layers of which this series knows nothing: those without weights have no gradient, a ReLU no limits.
 * @param {Grid} grid @param {LayerSeries} whole @returns {Grid}
 */
export function measured(grid, whole) {
  const rows = [...whole.step.keys()];
  const known = whole.layers.filter((_, layer) => rows.some((row) => isPresent(whole, row, layer)));
  const kept = grid.layers.flatMap((name, layer) => (known.includes(name) ? [layer] : []));
  if (!kept.length || kept.length === grid.layers.length) return grid;
  const cells = kept.flatMap((layer) =>
    [...Array(grid.columns).keys()].map((at) => layer * grid.columns + at),
  );
  return {
    ...grid,
    layers: kept.map((layer) => grid.layers[layer]),
    value: Float64Array.from(cells, (at) => grid.value[at]),
    kind: Uint8Array.from(cells, (at) => grid.kind[at]),
  };
}

/** @param {LayerSeries} series @param {number} row @param {number} layer @returns {boolean} */
function isPresent({ layers, value }, row, layer) {
  return !value.present || !!value.present[row * layers.length + layer];
}

/** @param {Grid} from @param {number} column @param {Grid} to @param {number} place */
function copyColumn(from, column, to, place) {
  to.source[place] = from.source[column];
  to.layers.forEach((_, layer) => {
    const [here, there] = [layer * from.columns + column, layer * to.columns + place];
    [to.kind[there], to.value[there]] = [from.kind[here], from.value[here]];
  });
}

/** @param {Grid} grid @param {LayerSeries} series @param {number} row @param {number} column */
function putRow(grid, series, row, column) {
  const width = series.layers.length;
  const { values, present } = series.value;
  for (let layer = 0; layer < width; layer++) {
    const from = row * width + layer;
    if (present && !present[from]) continue;
    const [to, kind] = [layer * grid.columns + column, kindOf(values[from])];
    if (kind > grid.kind[to] || (kind === FINITE && values[from] > grid.value[to]))
      [grid.kind[to], grid.value[to]] = [Math.max(kind, grid.kind[to]), values[from]];
  }
}

/** @param {LayerSeries} series @returns {number[]} each layer's median over its finite norms above 0; NaN without any */
export function mediansOf({ layers, value }) {
  return layers.map((_, layer) => {
    const found = [];
    for (let at = layer; at < value.values.length; at += layers.length) {
      const norm = value.values[at];
      if ((!value.present || value.present[at]) && norm > 0 && norm < Infinity) found.push(norm);
    }
    found.sort((a, b) => a - b);
    return found.length ? found[found.length >> 1] : NaN;
  });
}

/** @param {number} value @param {number} median @returns {number} 0 .. 1, and 0.5 at the median */
export function shadeOf(value, median) {
  if (!(value > 0)) return 0;
  if (Number.isNaN(median)) return 0.5;
  return Math.min(1, Math.max(0, 0.5 + Math.log10(value / median) / (2 * DECADES)));
}

/** @param {Grid} grid @param {number[] | null} medians null: the values are shares @param {number} at @returns {number} */
function shadeAt(grid, medians, at) {
  if (!medians) return Math.min(1, Math.max(0, grid.value[at]));
  return shadeOf(grid.value[at], medians[Math.floor(at / grid.columns)]);
}

/** @param {number} shade @param {HeatColors} colors @returns {Rgb} */
export function colorOf(shade, { low, middle, high }) {
  const [from, to, share] = shade < 0.5 ? [low, middle, shade * 2] : [middle, high, shade * 2 - 1];
  return /** @type {Rgb} */ (from.map((part, i) => Math.round(part + (to[i] - part) * share)));
}

/** @param {Grid} grid @param {number[] | null} medians null: the values are shares @param {HeatColors} colors @returns {Uint8ClampedArray<ArrayBuffer>} RGBA; what is missing is transparent */
export function pixelsOf(grid, medians, colors) {
  const pixels = new Uint8ClampedArray(grid.kind.length * 4);
  grid.kind.forEach((kind, at) => {
    if (kind === MISSING) return;
    const color =
      kind === FINITE
        ? colorOf(shadeAt(grid, medians, at), colors)
        : colors[/** @type {"nan" | "posinf" | "neginf"} */ (KINDS[kind])];
    pixels.set([...color, 255], at * 4);
  });
  return pixels;
}

/** @param {Pick<Grid, "range" | "columns">} grid @param {number} column @returns {Range} the steps of a column */
export function stepsOf({ range, columns }, column) {
  const width = (range.to - range.from + 1) / columns;
  const first = (/** @type {number} */ at) => range.from + Math.ceil(at * width - 1e-9);
  return { from: first(column), to: first(column + 1) - 1 };
}

/**
 * What a cell says, in words. @param {Grid} grid @param {number[] | null} medians null: the values are shares
 * @param {number} layer @param {number} column @returns {string}
 */
export function cellText(grid, medians, layer, column) {
  const at = layer * grid.columns + column;
  const head = `${clipped(grid.layers[layer], MAX_NAME)}, ${stepsText(grid.source[column])}`;
  const kind = KINDS[grid.kind[at]];
  if (kind === "missing") return `${head}: missing`;
  if (kind !== "finite") return `${head}: ${KIND_WORDS[kind]}`;
  const [value, median] = [grid.value[at], medians?.[layer] ?? NaN];
  const ratio =
    Number.isNaN(median) || value <= 0 ? "" : `, ${number(+(value / median).toPrecision(2))} × its median`;
  return `${head}: ${number(value)}${ratio}`;
}

/** @param {Range} steps @returns {string} */
function stepsText({ from, to }) {
  return from === to ? `step ${whole(from)}` : `steps ${whole(from)} to ${whole(to)}`;
}

/** @param {LayerSeries} series @param {number} at @returns {boolean} */
function isBad({ value }, at) {
  return !Number.isFinite(value.values[at]) && (!value.present || !!value.present[at]);
}

/** @param {LayerSeries} series @returns {number} the first row with a norm that is not finite, or -1 */
function firstBadRow(series) {
  const at = series.value.values.findIndex((_, i) => isBad(series, i));
  return at < 0 ? -1 : Math.floor(at / series.layers.length);
}

/** @param {LayerSeries} series @returns {Range | null} the steps of that row */
export function firstBadSteps(series) {
  const row = firstBadRow(series);
  return row < 0 ? null : { from: series.step[row], to: series.lastStep[row] };
}

/** @param {LayerSeries} series @returns {string} which layer was not finite first, and when; empty if none was */
export function firstBadText(series) {
  const [steps, row, { layers }] = [firstBadSteps(series), firstBadRow(series), series];
  if (!steps) return "";
  const bad = layers.filter((_, layer) => isBad(series, row * layers.length + layer));
  const rest = bad.length - MAX_NAMED;
  const names = bad.slice(0, MAX_NAMED).map((name) => clipped(name, MAX_NAME));
  const named = names.join(", ") + (rest > 0 ? ` and ${whole(rest)} more` : "");
  const which = bad.length === layers.length && layers.length > 1 ? "every layer" : named;
  return `first not finite: ${which}, ${stepsText(steps)}`;
}

const TALL = 20; // pixels of a row
const FLAT = 4;
const HEIGHT = 360; // of all rows together, where they are many
const LABEL = 13; // what a line of small text needs

/** @param {number} layers @returns {{row: number, every: number}} pixels of a row, and which rows have their name beside them */
export function rowsOf(layers) {
  const row = Math.max(FLAT, Math.min(TALL, Math.floor(HEIGHT / Math.max(1, layers))));
  return { row, every: Math.ceil(LABEL / row) };
}

/** @param {string} text as getComputedStyle gives it: rgb(1, 2, 3) @returns {Rgb} */
export function rgbOf(text) {
  const parts = (text.match(/[\d.]+/g) ?? []).map(Number);
  return [parts[0] ?? 0, parts[1] ?? 0, parts[2] ?? 0];
}

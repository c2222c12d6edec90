// The heat map on the page: a canvas of one pixel a cell, stretched; the pointer and the arrow keys read it.

import { ellipsis, h, refill } from "./dom.js";
import { whole } from "./format.js";
import {
  cellText,
  DECADES,
  extentOf,
  firstBadText,
  gridOf,
  held,
  KINDS,
  measured,
  mediansOf,
  pixelsOf,
  rgbOf,
  rowsOf,
} from "./heat.js";
import { mapsOf, shownMap } from "./layermaps.js";
import { palette } from "./palette.js";
import { shownNorms, shownRange } from "./state.js";

/** @typedef {import("./state.js").State} State */
/** @typedef {import("./heat.js").Grid} Grid */
/** @typedef {import("./heat.js").HeatColors} HeatColors */
/** @typedef {{layer: number, column: number}} Cell */
/** @typedef {import("./layermaps.js").LayerMap} LayerMap */
/** @typedef {{draw: (state: State, theme: string) => void}} HeatMap */

const NEAR_VIEW = { rootMargin: "200px" };
const CELL_PX = 2; // the least width of a column: one bad step of a million is to be seen
const TICKS = 4;
const MOVES = /** @type {Record<string, (cell: Cell, grid: Grid) => Cell>} */ ({
  ArrowLeft: ({ layer, column }) => ({ layer, column: column - 1 }),
  ArrowRight: ({ layer, column }) => ({ layer, column: column + 1 }),
  ArrowUp: ({ layer, column }) => ({ layer: layer - 1, column }),
  ArrowDown: ({ layer, column }) => ({ layer: layer + 1, column }),
  Home: ({ layer }) => ({ layer, column: 0 }),
  End: ({ layer }, { columns }) => ({ layer, column: columns - 1 }),
});

/**
 * @param {HTMLElement} card @param {() => void} redraw @param {() => void} want
 * @param {(series: string) => void} choose @returns {HeatMap}
 */
export function createHeatMap(card, redraw, want, choose) {
  const parts = build(card);
  parts.choice.addEventListener("change", () => choose(parts.choice.value));
  let isVisible = false;
  /** @type {unknown[]} */
  let drawn = [];
  /** @type {{grid: Grid, medians: number[] | null} | null} */
  let shown = null;
  /** @type {Cell | null} */
  let cell = null;

  new IntersectionObserver((entries) => {
    isVisible = entries.at(-1)?.isIntersecting ?? false;
    redraw();
  }, NEAR_VIEW).observe(card);

  /** @param {Cell | null} at */
  const point = (at) => {
    cell = shown && at && clampedTo(shown.grid, at);
    parts.said.textContent =
      shown && cell ? cellText(shown.grid, shown.medians, cell.layer, cell.column) : "";
    parts.cursor.hidden = !cell;
    if (shown && cell) place(parts.cursor, shown.grid, cell);
  };
  parts.canvas.addEventListener("pointermove", (event) => shown && point(cellAt(event, shown.grid)));
  parts.canvas.addEventListener("pointerleave", () => point(null));
  parts.canvas.addEventListener("blur", () => point(null));
  parts.canvas.addEventListener("focus", () => point(cell ?? { layer: 0, column: Infinity }));
  parts.canvas.addEventListener("keydown", (event) => {
    const move = MOVES[event.key];
    if (!move || !shown || !cell) return;
    event.preventDefault();
    point(move(cell, shown.grid));
  });

  return {
    draw(state, theme) {
      const map = shownMap(state);
      card.hidden = !map;
      if (!map || !isVisible) return;
      want();
      const [found, base] = [shownNorms(state), state.norms.whole];
      const series = map.isSampled && !found?.step.length ? base : found;
      title(parts, card, map, mapsOf(state));
      const needs = [
        map,
        series,
        base,
        state.norms.onset,
        state.range,
        map.isSampled && shownRange(state).to,
        theme,
        parts.field.clientWidth,
      ];
      if (!series?.step.length || needs.every((need, i) => need === drawn[i])) return;
      drawn = needs;
      const range = map.isSampled ? shownRange(state) : (state.range ?? extentOf(series));
      const cells = gridOf(series, range, Math.max(1, Math.floor(parts.field.clientWidth / CELL_PX)));
      const grid = measured(map.isSampled ? held(cells, base ?? series) : cells, base ?? series);
      shown = { grid, medians: map.isShare ? null : mediansFor(grid.layers, base ?? series) };
      paint(parts, grid, shown.medians);
      const bad = firstBadText(state.norms.onset ?? base ?? series);
      parts.bad.textContent = map.isSampled ? bad.replace("first", "first seen") : bad;
      parts.canvas.setAttribute("aria-label", spoken(map, grid, parts.bad.textContent));
      point(cell);
    },
  };
}

/** @param {HTMLElement} card */
function build(card) {
  const canvas = h("canvas", { tabindex: 0, role: "application", "aria-roledescription": "heat map" });
  const [names, ticks, said] = [
    h("div", { class: "heat-names", "aria-hidden": "true" }),
    h("div", { class: "heat-ticks muted", "aria-hidden": "true" }),
    h("output", { class: "heat-said" }),
  ];
  const cursor = h("div", { class: "heat-cursor", hidden: true });
  const field = h("div", { class: "heat-field" }, canvas, cursor);
  const [bad, heading, note] = [h("span", { class: "heat-bad" }), h("h2", {}), h("span", {})];
  const [least, most] = [h("span", {}), h("span", {})];
  const choice = h("select", { "aria-label": "What the map of the layers shows" });
  card.append(
    h("header", {}, heading, choice, bad),
    h("p", { class: "note-line" }, note, legend(least, most)),
    h("div", { class: "heat-rows" }, names, field, ticks),
    said,
  );
  return { canvas, names, ticks, said, cursor, field, bad, heading, note, choice, least, most };
}

/** @param {ReturnType<typeof build>} parts @param {HTMLElement} card @param {LayerMap} map @param {LayerMap[]} maps */
function title({ heading, note, choice, least, most }, card, map, maps) {
  heading.textContent = `${map.title} by layer`;
  const scale = map.isShare ? "of the whole layer" : "against the layer’s own median";
  note.textContent = `${scale}${map.isSampled ? "; measured now and then, shown until the next time" : ""}`;
  const end = 10 ** DECADES;
  [least.textContent, most.textContent] = map.isShare ? ["0 ", " 1"] : [`1/${end} `, ` ${end} ×`];
  card.setAttribute("aria-label", heading.textContent);
  choice.hidden = maps.length < 2;
  if (choice.options.length !== maps.length)
    refill(choice, ...maps.map(({ series, title }) => h("option", { value: series }, title)));
  choice.value = map.series;
}

/** @param {HTMLElement} least @param {HTMLElement} most the ends of the scale @returns {HTMLElement} */
function legend(least, most) {
  const scale = h("i", { class: "heat-scale", "aria-hidden": "true" });
  const kinds = KINDS.filter((kind) => kind === "nan" || kind === "posinf" || kind === "missing").reverse();
  const words = { nan: "NaN", posinf: "+Inf", missing: "missing" };
  const boxes = kinds.map((kind) =>
    h(
      "span",
      {},
      h("i", { class: "heat-box", "data-kind": kind, "aria-hidden": "true" }),
      words[/** @type {keyof typeof words} */ (kind)],
    ),
  );
  return h("span", { class: "legend" }, h("span", {}, least, scale, most), ...boxes);
}

/** @param {ReturnType<typeof build>} parts @param {Grid} grid @param {number[] | null} medians */
function paint({ canvas, names, ticks, field }, grid, medians) {
  const rows = grid.layers.length;
  const { row, every } = rowsOf(rows);
  [canvas.width, canvas.height] = [grid.columns, rows];
  const pixels = new ImageData(pixelsOf(grid, medians, heatColors()), grid.columns, rows);
  canvas.getContext("2d")?.putImageData(pixels, 0, 0);
  field.dataset.drawn = ""; // before that nothing is missing
  field.style.setProperty("--rows", String(rows));
  field.style.setProperty("--row", `${row}px`);
  names.style.setProperty("--row", `${row * every}px`);
  refill(names, ...grid.layers.filter((_, i) => i % every === 0).map((name) => ellipsis(name)));
  const { from, to } = grid.range;
  const step = (/** @type {number} */ i) => Math.round(from + ((to - from) * i) / TICKS);
  refill(ticks, ...[...Array(TICKS + 1).keys()].map((i) => h("span", {}, whole(step(i)))));
}

/** @returns {HeatColors} */
function heatColors() {
  const colors = palette();
  return {
    low: rgbOf(colors["heat-low"]),
    middle: rgbOf(colors["heat-middle"]),
    high: rgbOf(colors["heat-high"]),
    nan: rgbOf(colors.nan),
    posinf: rgbOf(colors.posinf),
    neginf: rgbOf(colors.neginf),
  };
}

/** @param {string[]} layers @param {import("./records.js").LayerSeries} base @returns {number[]} */
function mediansFor(layers, base) {
  const medians = mediansOf(base);
  return layers.map((name) => medians[base.layers.indexOf(name)] ?? NaN);
}

/** @param {PointerEvent} event @param {Grid} grid @returns {Cell} */
function cellAt(event, grid) {
  const box = /** @type {HTMLElement} */ (event.currentTarget).getBoundingClientRect();
  return {
    layer: Math.floor(((event.clientY - box.top) / box.height) * grid.layers.length),
    column: Math.floor(((event.clientX - box.left) / box.width) * grid.columns),
  };
}

/** @param {Grid} grid @param {Cell} cell @returns {Cell} */
function clampedTo({ layers, columns }, { layer, column }) {
  const within = (/** @type {number} */ at, /** @type {number} */ count) =>
    Math.max(0, Math.min(count - 1, at));
  return { layer: within(layer, layers.length), column: within(column, columns) };
}

/** @param {HTMLElement} cursor @param {Grid} grid @param {Cell} cell */
function place(cursor, { layers, columns }, { layer, column }) {
  cursor.style.left = `${(column / columns) * 100}%`;
  cursor.style.width = `${100 / columns}%`;
  cursor.style.top = `${(layer / layers.length) * 100}%`;
  cursor.style.height = `${100 / layers.length}%`;
}

/** @param {LayerMap} map @param {Grid} grid @param {string} bad @returns {string} */
function spoken({ title }, { layers, range }, bad) {
  const what = `${title} of ${whole(layers.length)} layers, steps ${whole(range.from)} to ${whole(range.to)}`;
  return `${what}${bad && `; ${bad}`}. Arrow keys read it.`;
}

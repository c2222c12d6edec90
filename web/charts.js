// The charts: DOM around plotly, drawn from the state. The only module that calls plotly.

import { ellipsis, h, refill } from "./dom.js";
import { chartTrack, figureOf, legendOf, shareText, spokenChart } from "./figure.js";
import { chips, latestOf } from "./glyphs.js";
import { CHARTS } from "./instruments.js";
import { lane } from "./lane.js";
import { palette } from "./palette.js";
import { shownRange, shownTrack } from "./state.js";
import { totalsOf } from "./track.js";

/** @typedef {import("./state.js").State} State */
/** @typedef {import("./state.js").Action} Action */
/** @typedef {import("./instruments.js").Chart} Chart */
/** @typedef {import("./palette.js").Palette} Palette */
/** @typedef {Record<string, unknown>} Relayout */
/**
 * The part of plotly that we call.
 * @typedef {HTMLElement & {on: (name: string, listener: (event: Relayout) => void) => void}} Plot
 * @typedef {{react: (plot: HTMLElement, data: object[], layout: object, config: object) => Promise<Plot>}} Plotly
 */
/**
 * @typedef {{chart: Chart, card: HTMLElement, plot: HTMLElement, lane: HTMLElement, chips: HTMLElement,
 *   legend: HTMLElement, now: HTMLElement, log: HTMLButtonElement, isVisible: boolean, isMounted: boolean,
 *   drawn: unknown[]}} Instrument
 */

const NEAR_VIEW = { rootMargin: "300px" }; // drawn a little before it is scrolled to
const CONFIG = { displayModeBar: false, responsive: true, doubleClick: false, scrollZoom: false };

/** @returns {Promise<Plotly>} once its deferred script has run */
export function loadPlotly() {
  const loaded = () => /** @type {{Plotly?: Plotly}} */ (/** @type {unknown} */ (globalThis)).Plotly;
  return new Promise((resolve, reject) => {
    const now = loaded();
    if (now) return resolve(now);
    const script = document.getElementById("plotly");
    script?.addEventListener("load", () => resolve(/** @type {Plotly} */ (loaded())));
    script?.addEventListener("error", () => reject(new Error("the chart library did not load")));
  });
}

/**
 * @param {HTMLElement} container @param {HTMLElement} more @param {(action: Action) => void} dispatch
 * @param {() => void} redraw @returns {(charts: Chart[]) => Instrument[]} adds the charts that the page lacks
 */
export function chartBuilder(container, more, dispatch, redraw) {
  /** @type {Instrument[]} */
  const instruments = [];
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const instrument = instruments.find((item) => item.card === entry.target);
      if (instrument) instrument.isVisible = entry.isIntersecting;
    }
    redraw();
  }, NEAR_VIEW);
  return (charts) => {
    const known = new Set(instruments.map(({ chart }) => chart.series));
    for (const chart of charts.filter(({ series }) => !known.has(series))) {
      const instrument = buildChart(chart, dispatch);
      instruments.push(instrument);
      seen.observe(instrument.card);
      (CHARTS.includes(chart) ? container : more).append(instrument.card);
    }
    return instruments;
  };
}

/** @param {Chart} chart @param {(action: Action) => void} dispatch @returns {Instrument} */
function buildChart(chart, dispatch) {
  const log = h("button", { type: "button", class: "quiet scale", "aria-pressed": "false" }, "Log");
  log.setAttribute("aria-label", `Logarithmic axis for ${chart.title}`);
  log.addEventListener("click", () => {
    dispatch({ type: "scale", series: chart.series, log: log.getAttribute("aria-pressed") !== "true" });
  });
  const [plot, laneBox, chipBox, legend, now] = [
    h("div", { class: "plot", role: "img" }),
    h("div", { class: "lane-box" }),
    h("span", { class: "chip-box" }),
    h("span", { class: "legend" }),
    h("output", { class: "now" }),
  ];
  const head = h("header", {}, h("h2", {}, ellipsis(chart.title)), chipBox, now, log);
  const card = h("section", {
    class: `card chart${chart.isWide ? " wide" : ""}`,
    "data-series": chart.series,
  });
  card.append(head, h("p", { class: "note-line" }, h("span", {}, chart.note), legend), plot, laneBox);
  const parts = { chart, card, plot, lane: laneBox, chips: chipBox, legend, now, log };
  return { ...parts, isVisible: false, isMounted: false, drawn: [] };
}

const nextFrame = () => new Promise((resolve) => requestAnimationFrame(resolve));

/**
 * Draw what is in view and has changed, a chart a frame, so that the page answers in between.
 * @param {Plotly | null} plotly @param {Instrument[]} instruments @param {State} state
 * @param {(action: Action) => void} dispatch @param {string} theme
 * @returns {Promise<number>} milliseconds of work
 */
export async function drawCharts(plotly, instruments, state, dispatch, theme) {
  /** @type {Palette | null} */
  let colors = null;
  let work = 0;
  for (const instrument of instruments) {
    const { chart, card } = instrument;
    const track = shownTrack(state, chart.series);
    card.hidden = state.isLoaded && !track?.step.length && !chart.isWide;
    /** @type {unknown[]} */
    const needs = [
      track,
      state.range,
      state.range ? null : shownRange(state).to,
      state.incidents,
      state.incidentId,
    ];
    if (chart.isWide) needs.push(state.validation, state.epochs, state.ghosts);
    const all = [...needs, state.gaps, state.logScale[chart.series], theme, plotly, card.clientWidth];
    if (card.hidden || !instrument.isVisible || isSame(all, instrument.drawn)) continue;
    instrument.drawn = all;
    colors ??= palette();
    if (work) await nextFrame();
    const start = performance.now();
    drawAround(instrument, state);
    if (plotly) drawPlot(plotly, instrument, state, dispatch, colors);
    work += performance.now() - start;
  }
  return work;
}

/** @param {unknown[]} a @param {unknown[]} b */
function isSame(a, b) {
  return a.length === b.length && a.every((value, i) => value === b[i]);
}

/** @param {Instrument} instrument @param {State} state */
function drawAround(instrument, state) {
  const { chart, plot } = instrument;
  const track = chartTrack(state, chart);
  const range = shownRange(state);
  refill(instrument.lane, lane(track, range, plot.clientWidth));
  const share = shareText(state, chart);
  const shareChip = share ? h("span", { class: "share muted" }, share) : null;
  refill(instrument.chips, shareChip, chips(totalsOf(track, range.from, range.to)));
  refill(instrument.legend, ...legendOf(state, chart).map(legendEntry));
  instrument.now.textContent = latestOf(track);
  plot.setAttribute("aria-label", spokenChart(state, chart));
}

/** @param {{kind: string, text: string}} entry @returns {HTMLElement} */
function legendEntry({ kind, text }) {
  return h("span", { "data-kind": kind }, h("i", { class: "swatch", "aria-hidden": "true" }), text);
}

/**
 * @param {Plotly} plotly @param {Instrument} instrument @param {State} state
 * @param {(action: Action) => void} dispatch @param {Palette} colors
 */
function drawPlot(plotly, instrument, state, dispatch, colors) {
  const { data, layout, log } = figureOf(state, instrument.chart, colors);
  instrument.log.setAttribute("aria-pressed", String(log));
  // Not waited for: what it promises may come late, and the next drawing must not depend on it.
  void plotly.react(instrument.plot, data, layout, CONFIG);
  if (instrument.isMounted) return;
  instrument.isMounted = true;
  const plot = /** @type {Plot} */ (instrument.plot);
  plot.on("plotly_relayout", (event) => {
    const [from, to] = [event["xaxis.range[0]"], event["xaxis.range[1]"]];
    if (typeof from === "number" && typeof to === "number") dispatch({ type: "zoom", range: { from, to } });
  });
  plot.on("plotly_doubleclick", () => dispatch({ type: "follow" }));
}

// Instruments: which charts there are and what each needs. What is measured is the server's business.

import { VALIDATION_LOSS } from "./events.js";
import { clipped, words } from "./format.js";

/** @typedef {"log" | "linear" | "auto"} Scale */
/**
 * `isSampled`: measured now and then, so that the steps between are not missing.
 * @typedef {{series: string, title: string, note: string, scale: Scale, shape: "linear" | "hv", isWide: boolean,
 *   isCount: boolean, isSampled?: boolean}} Chart
 */
/** @typedef {import("./state.js").State} State */

/** @type {Chart[]} */
export const CHARTS = [
  {
    series: "loss",
    title: "Loss",
    note: "raw loss of each batch, unscaled",
    scale: "auto",
    shape: "linear",
    isWide: true,
    isCount: false,
  },
  {
    series: "grad_norm",
    title: "Gradient norm",
    note: "global L2, unscaled, before the optimizer clips; clipping by hand before it cannot be seen",
    scale: "log",
    shape: "linear",
    isWide: false,
    isCount: false,
  },
  {
    series: "grad_nonfinite",
    title: "Non-finite gradient elements",
    note: "count in each step",
    scale: "auto",
    shape: "hv",
    isWide: false,
    isCount: true,
  },
  {
    series: "loss_scale",
    title: "Loss scale",
    note: "of the loss-scaling optimizer",
    scale: "log",
    shape: "hv",
    isWide: false,
    isCount: false,
  },
  {
    series: "learning_rate",
    title: "Learning rate",
    note: "as the optimizer used it",
    scale: "auto",
    shape: "linear",
    isWide: false,
    isCount: false,
  },
];

/** Series that say nothing on a chart. */
const PLAIN = new Set(["batch_size"]);
/** Known only in some steps: where there is a reason to look, or time for it. */
const LOOKED_AT = new Set(["input_nonfinite", "label_nonfinite", "weight_nonfinite", "overhead_share"]);
const MAX_CHARTS = 24;

/** @param {string[]} names the series of a run @returns {Chart[]} our own charts, then one for each other series */
export function chartsFor(names) {
  const known = new Set(CHARTS.map((chart) => chart.series));
  const others = names.filter((name) => !known.has(name) && !PLAIN.has(name)).sort();
  return [...CHARTS, ...others.map(plainChart)].slice(0, MAX_CHARTS);
}

/** @param {State} state @returns {Chart[]} */
export function chartsOf({ run, validation }) {
  const metrics = Object.keys(validation).filter((name) => name !== VALIDATION_LOSS);
  return chartsFor([...new Set([...(run?.series ?? []), ...metrics])]);
}

/** @param {string} series @returns {Chart} */
function plainChart(series) {
  const isRunning = series.endsWith("_running");
  const title = words(
    clipped(series, 80)
      .replace(/_running$/, ", running")
      .replace(/^val_/, "validation ")
      .replace(/_s$/, ", seconds"),
  );
  const [isCount, isSampled] = [isCountSeries(series), isRunning || LOOKED_AT.has(series)];
  return {
    series,
    title,
    scale: "auto",
    isWide: false,
    isCount,
    note: noteOf(series),
    shape: "linear",
    isSampled,
  };
}

/** @param {string} series @returns {boolean} whether it is 0 but for some steps, which are what matters */
export function isCountSeries(series) {
  return series === "skipped" || series.endsWith("_nonfinite");
}

/** @param {string} series @returns {string} */
function noteOf(series) {
  if (series.endsWith("_running")) return "running mean as Keras reports it, sampled";
  if (series.startsWith("val_")) return "of each validation";
  if (series === "overhead_share") return "share of the host’s time that measuring takes";
  return series === "optimizer_step"
    ? "steps that the optimizer counts: it does not count the skipped ones"
    : "";
}

const WIDE_RATIO = 1000; // beyond it a linear axis shows only the largest values

/**
 * @param {Chart} chart @param {boolean | undefined} chosen @param {[number, number] | null} extent
 * @returns {boolean} whether the axis is logarithmic
 */
export function isLogScale(chart, chosen, extent) {
  if (chosen !== undefined) return chosen;
  if (chart.scale !== "auto") return chart.scale === "log";
  return extent !== null && extent[0] > 0 && extent[1] / extent[0] > WIDE_RATIO;
}

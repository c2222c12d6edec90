// Figure: from the state to what plotly draws. Pure; at most 2,000 points a trace.

import { VALIDATION_LOSS } from "./events.js";
import { number, whole, words } from "./format.js";
import { isLogScale } from "./instruments.js";
import { shownIncident, shownRange, shownTrack } from "./state.js";
import {
  emptyTrack,
  envelopeOf,
  extentOf,
  lastValueOf,
  lineOf,
  sampled,
  shareAbove,
  totalsOf,
} from "./track.js";
import { dotTrace, envelopeTrace, ghostTrace, lineTrace, pointsTrace, stemTraces } from "./traces.js";

/** @typedef {import("./state.js").State} State */
/** @typedef {import("./state.js").Range} Range */
/** @typedef {import("./instruments.js").Chart} Chart */
/** @typedef {import("./palette.js").Palette} Palette */
/** @typedef {import("./records.js").Incident} Incident */
/** @typedef {import("./track.js").Track} Track */
/** @typedef {{data: object[], layout: Record<string, unknown>, log: boolean}} Figure */

/** Both sides of the plot: the lane below lines up with it. */
export const MARGIN = { left: 58, right: 14 };
const MAX_LINES = 100;
const EPOCH_TICK = 0.03; // of the height
const MAX_LABELS = 6;
const LABEL_SHARE = 0.2; // of the width: labels closer than this go on another level
const LABEL_HEIGHT = 16;
const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, sans-serif';

/** @param {State} state @param {Chart} chart @returns {Track} what the chart shows of its own series */
export function chartTrack(state, chart) {
  const track = shownTrack(state, chart.series) ?? emptyTrack();
  return chart.isSampled ? sampled(track) : track;
}

/** @param {State} state @param {Chart} chart @returns {Track | null} */
function validationTrack(state, chart) {
  return (chart.series === "loss" && state.validation[VALIDATION_LOSS]) || null;
}

/** @param {State} state @param {Chart} chart @param {Palette} colors @returns {Figure} */
export function figureOf(state, chart, colors) {
  const track = chartTrack(state, chart);
  const extent = extentOf(track, validationTrack(state, chart));
  const log = isLogScale(chart, state.logScale[chart.series], extent);
  const labels = chart.isWide ? labelsOf(state, colors) : [];
  return {
    log,
    data: chart.isCount ? stemTraces(track, log, colors) : tracesOf(state, chart, track, colors),
    layout: {
      ...layoutOf(shownRange(state), log, ticksOf(log, extent, chart), colors),
      margin: { l: MARGIN.left, r: MARGIN.right, t: 8 + LABEL_HEIGHT * levels(labels), b: 26 },
      shapes: [
        ...gapShapes(state, colors),
        ...(chart.isWide ? epochShapes(state, colors) : []),
        ...incidentShapes(state, colors),
      ],
      annotations: labels,
    },
  };
}

/** @param {State} state @param {Chart} chart @param {Track} track @param {Palette} colors @returns {object[]} */
function tracesOf(state, chart, track, colors) {
  const line = lineOf(track, state.gaps);
  const validation = validationTrack(state, chart);
  const ghosts = chart.series === "loss" ? state.ghosts : [];
  return [
    ...ghosts.map((ghost) => ghostTrace(lineOf(ghost, []), colors)),
    envelopeTrace(envelopeOf(track, state.gaps), colors),
    lineTrace(line, chart, colors),
    dotTrace(line, colors),
    ...(validation ? [pointsTrace(lineOf(validation, []), "validation loss", colors)] : []),
  ];
}

/**
 * The lines of a chart by name, where there are several.
 * @param {State} state @param {Chart} chart @returns {{kind: string, text: string}[]}
 */
export function legendOf(state, chart) {
  const validation = validationTrack(state, chart);
  const entries = [{ kind: "batch", text: "each batch" }];
  if (validation) {
    const bad = totalsOf(validation);
    const count = bad.nan + bad.posinf + bad.neginf;
    entries.push({
      kind: "validation",
      text: `validation loss${count ? `, ${whole(count)} not finite` : ""}`,
    });
  }
  if (chart.series === "loss" && state.ghosts.length)
    entries.push({ kind: "ghost", text: "earlier session" });
  return entries.length > 1 ? entries : [];
}

/** @param {State} state @param {Chart} chart @returns {string} of a count: in how many of the shown steps it is not 0 */
export function shareText(state, chart) {
  const range = shownRange(state);
  const { least, most, rows } = shareAbove(chartTrack(state, chart), range.from, range.to);
  if (!chart.isCount || !rows) return "";
  if (!most) return `in none of ${whole(rows)} steps`;
  const count = least === most ? whole(least) : `${whole(least)} to ${whole(most)}`;
  return `in ${count} of ${whole(rows)} steps`;
}

/**
 * Few grid lines, whatever the scale.
 * @param {boolean} log @param {[number, number] | null} extent @param {Chart} chart @returns {Record<string, unknown>}
 */
function ticksOf(log, extent, chart) {
  if (extent && extent[0] === extent[1])
    return { nticks: 4, tickformat: "~g", range: rangeAround(extent[0], log) };
  if (!log) return chart.isCount ? { nticks: 5, tickformat: "~s", rangemode: "tozero" } : { nticks: 5 };
  const decades = extent && extent[0] > 0 ? Math.log10(extent[1] / extent[0]) : 0;
  if (decades < 0.7) return { nticks: 4, tickformat: "~g" };
  return decades < 1.5 ? { dtick: "D2", tickformat: "~g" } : { dtick: Math.ceil(decades / 4) };
}

/** What plotly chooses around a constant says nothing. @param {number} value @param {boolean} log */
function rangeAround(value, log) {
  if (log) return [Math.log10(value) - 1, Math.log10(value) + 1];
  return value === 0 ? [-0.04, 1] : [Math.min(0, 2 * value), Math.max(0, 2 * value)];
}

/**
 * @param {Range} range @param {boolean} log @param {Record<string, unknown>} ticks @param {Palette} colors
 */
function layoutOf(range, log, ticks, colors) {
  const axis = { gridcolor: colors.line, zeroline: false, tickfont: { color: colors.muted, size: 11 } };
  return {
    autosize: true,
    dragmode: "zoom",
    hovermode: "x",
    paper_bgcolor: "transparent",
    plot_bgcolor: "transparent",
    font: { family: FONT, color: colors.text, size: 12 },
    hoverlabel: {
      bgcolor: colors.surface,
      bordercolor: colors.line,
      font: { color: colors.text, family: FONT },
    },
    xaxis: {
      ...axis,
      range: [range.from, range.to],
      showgrid: false,
      tickformat: ",d",
      nticks: 8,
      showspikes: true,
      spikemode: "across",
      spikethickness: 1,
      spikedash: "solid",
      spikecolor: colors.line,
      linecolor: colors.line,
      showline: true,
    },
    yaxis: {
      ...axis,
      type: log ? "log" : "linear",
      fixedrange: true,
      exponentformat: "power",
      ...ticks,
    },
  };
}

/** @param {State} state @returns {Incident[]} those worth a line, in order of their onset */
function marked(state) {
  return state.incidents
    .filter((incident) => incident.state !== "withdrawn" && incident.rank === state.rank)
    .toSorted((a, b) => a.onsetStep - b.onsetStep)
    .slice(-MAX_LINES);
}

/** @param {State} state @param {Palette} colors @returns {object[]} */
function incidentShapes(state, colors) {
  const shown = shownIncident(state);
  return marked(state).flatMap((incident) => {
    const color = colors[incident.severity];
    const isShown = incident.id === shown?.id;
    const line = { color, width: isShown ? 2 : 1, dash: incident.severity === "info" ? "dot" : "solid" };
    const at = { type: "line", x0: incident.onsetStep, x1: incident.onsetStep, yref: "paper", y0: 0, y1: 1 };
    const end = incident.nonfiniteStep;
    const band =
      isShown && end !== null && end > incident.onsetStep ? [bandShape(incident.onsetStep, end, color)] : [];
    return [...band, { ...at, line, opacity: isShown ? 1 : 0.6 }];
  });
}

/** @param {number} from @param {number} to @param {string} color */
function bandShape(from, to, color) {
  const place = { type: "rect", x0: from, x1: to, yref: "paper", y0: 0, y1: 1, layer: "below" };
  return { ...place, fillcolor: color, opacity: 0.09, line: { width: 0 } };
}

/** Where epochs end: short ticks at the bottom. @param {State} state @param {Palette} colors @returns {object[]} */
function epochShapes({ epochs }, colors) {
  if (epochs.length > MAX_LINES) return [];
  const line = { width: 1, color: colors.muted };
  return epochs.map(({ step }) => ({
    type: "line",
    name: "epoch",
    x0: step,
    x1: step,
    yref: "paper",
    y0: 0,
    y1: EPOCH_TICK,
    line,
  }));
}

/** What the client declared lost. @param {State} state @param {Palette} colors @returns {object[]} */
function gapShapes(state, colors) {
  return state.gaps.slice(-MAX_LINES).map((gap) => ({
    ...bandShape(gap.firstStep - 0.5, gap.lastStep + 0.5, colors.missing),
    opacity: 0.22,
    name: "gap",
  }));
}

/** @param {State} state @param {Palette} colors @returns {{x: number, yshift: number}[]} */
function labelsOf(state, colors) {
  const range = shownRange(state);
  const share = (/** @type {number} */ step) => (step - range.from) / (range.to - range.from);
  const loud = marked(state).filter((incident) => incident.severity !== "info");
  const incidents = loud.map((item) => ({
    x: item.onsetStep,
    text: words(item.kind),
    color: colors[item.severity],
  }));
  const gaps = state.gaps.map((gap) => ({ x: gap.firstStep, text: gapText(gap), color: colors.muted }));
  const inside = [...incidents, ...gaps].filter((label) => share(label.x) >= 0 && share(label.x) <= 1);
  /** @type {number[]} */
  const ends = [];
  return inside.slice(-MAX_LABELS).map((label) => {
    const at = share(label.x);
    const level = freeLevel(ends, at);
    const place = { x: label.x, y: 1, yref: "paper", yshift: level * LABEL_HEIGHT, yanchor: "bottom" };
    const anchor = { xanchor: at > 0.8 ? "right" : "left", showarrow: false };
    return { ...place, ...anchor, text: label.text, font: { color: label.color, size: 12 } };
  });
}

/** @param {number[]} ends where the last label of each level ends @param {number} at @returns {number} */
function freeLevel(ends, at) {
  const start = at > 0.8 ? at - LABEL_SHARE : at;
  const found = ends.findIndex((end) => end <= start);
  const level = found < 0 ? ends.length : found;
  ends[level] = start + LABEL_SHARE;
  return level;
}

/** @param {import("./records.js").Gap} gap @returns {string} plotly reads some markup in labels: leave none */
function gapText(gap) {
  return `lost: ${gap.reason
    .replace(/[^\w ]/g, "")
    .slice(0, 40)
    .replaceAll("_", " ")}`;
}

/** @param {{yshift: number}[]} labels */
function levels(labels) {
  return labels.length ? 1 + Math.max(...labels.map((label) => label.yshift)) / LABEL_HEIGHT : 0;
}

/** The chart in words, for those who do not see it. @param {State} state @param {Chart} chart @returns {string} */
export function spokenChart(state, chart) {
  const track = chartTrack(state, chart);
  const [range, extent, totals] = [shownRange(state), extentOf(track), totalsOf(track)];
  const values = extent
    ? `from ${number(extent[0])} to ${number(extent[1])}, last ${number(lastValueOf(track))}`
    : "no finite value";
  const bad = `${totals.nan} NaN, ${totals.posinf} plus infinity, ${totals.neginf} minus infinity`;
  const share = shareText(state, chart);
  const said = [share && `not 0 ${share}`, values].filter(Boolean).join(", ");
  return `${chart.title}, steps ${whole(range.from)} to ${whole(range.to)}: ${said}; ${bad}, ${totals.missing} missing`;
}

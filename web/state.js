// State of the run page: one value, changed by one pure function. The DOM and Plotly only show it.

import { tracksOfEvents } from "./events.js";
import { DEFAULT_MAP } from "./layermaps.js";
import { appended, emptyTrack, lastStepOf, trackOf } from "./track.js";

/** @typedef {import("./records.js").Run} Run */
/** @typedef {import("./records.js").RunDetail} RunDetail */
/** @typedef {import("./records.js").Incident} Incident */
/** @typedef {import("./records.js").Gap} Gap */
/** @typedef {import("./records.js").SeriesAnswer} SeriesAnswer */
/** @typedef {import("./records.js").LayerSeries} LayerSeries */
/** @typedef {import("./track.js").Track} Track */
/** @typedef {import("./badlayers.js").BadLayer} BadLayer */
/** @typedef {import("./events.js").RunEvent} RunEvent */
/** @typedef {"connecting" | "live" | "lost"} Link */
/** @typedef {{from: number, to: number}} Range */
/** @typedef {Record<string, Track>} Tracks */

/**
 * `range` null means follow; `detail` is the zoomed range at full resolution, once it has come. `logScale` holds
 * what the user chose, by series. `stale` counts the rows that we hold already or
 * that contradict them, `news` those that tell of more than they bring: the page reads again then. `ghosts` is the
 * loss of earlier sessions beyond the step where a later one resumed; `validation` is by metric.
 * `recent` holds what came live while a load is under way, which may have been read before it; `norms` are those of
 * the layers in the series `layerMap`: over the whole run, of the zoomed range, and of the steps in which the first was
 * not finite.
 * @typedef {{runId: string, rank: number, run: RunDetail | null, problem: string | null, incidents: Incident[],
 *   incidentId: string | null, tracks: Tracks, gaps: Gap[], range: Range | null,
 *   detail: {range: Range, tracks: Tracks} | null, badLayers: BadLayer[], logScale: Record<string, boolean>, link: Link,
 *   validation: Tracks, validations: RunEvent[], epochs: RunEvent[], ghosts: Track[],
 *   layerMap: string, norms: {whole: LayerSeries | null, onset: LayerSeries | null, detail: {range: Range, series: LayerSeries} | null},
 *   recent: Rows[] | null, stale: number, news: number, isLoaded: boolean, isGone: boolean}} State
 */
/** @typedef {Extract<Action, {type: "rows"}>} Rows */

/**
 * @typedef {{type: "run", run: RunDetail}
 *   | {type: "run-news", run: Run}
 *   | {type: "problem", text: string}
 *   | {type: "incidents", incidents: Incident[]}
 *   | {type: "incident", incident: Incident}
 *   | {type: "gone", text: string}
 *   | {type: "events", rank: number, validations: RunEvent[], epochs: RunEvent[]}
 *   | {type: "ghosts", rank: number, answers: SeriesAnswer[]}
 *   | {type: "loading"}
 *   | {type: "series", answer: SeriesAnswer}
 *   | {type: "rows", rank: number, cursor: number, steps: number[], columns: Record<string, import("./codec.js").Column>}
 *   | {type: "detail", range: Range, answer: SeriesAnswer}
 *   | {type: "bad-layers", layers: BadLayer[]}
 *   | {type: "norms", rank: number, layerMap: string, whole: LayerSeries, onset: LayerSeries | null}
 *   | {type: "norms-detail", rank: number, layerMap: string, range: Range, series: LayerSeries}
 *   | {type: "zoom", range: Range}
 *   | {type: "follow"}
 *   | {type: "select", incidentId: string}
 *   | {type: "scale", series: string, log: boolean}
 *   | {type: "rank", rank: number}
 *   | {type: "layer-map", series: string}
 *   | {type: "stop-requested"}
 *   | {type: "link", link: Link}} Action
 */

const SEVERITIES = ["critical", "warning", "info"];
const MOST_RECENT = 500; // messages: more than come during a load, and a bound where it never ends
const STATES = ["open", "resolved", "withdrawn"];

/** What belongs to one rank. */
const NOTHING_READ = {
  tracks: {},
  gaps: [],
  detail: null,
  validation: {},
  validations: [],
  epochs: [],
  ghosts: [],
  recent: null,
  norms: { whole: null, onset: null, detail: null },
  isLoaded: false,
};

/** @param {string} runId @param {Partial<State>} [view] @returns {State} */
export function initialState(runId, view = {}) {
  return {
    runId,
    rank: 0,
    run: null,
    problem: null,
    incidents: [],
    incidentId: null,
    range: null,
    badLayers: [],
    logScale: {},
    layerMap: DEFAULT_MAP,
    link: "connecting",
    stale: 0,
    news: 0,
    isGone: false,
    ...NOTHING_READ,
    ...view,
  };
}

/** @param {State} state @param {Action} action @returns {State} */
export function reduce(state, action) {
  switch (action.type) {
    case "run":
      return { ...state, run: action.run, problem: null };
    case "run-news":
      return state.run ? { ...state, run: { ...state.run, ...action.run } } : state;
    case "problem":
      return state.isGone ? state : { ...state, problem: action.text };
    case "gone":
      return state.isGone ? state : { ...state, problem: action.text, isGone: true };
    case "events":
      return withEvents(state, action);
    case "ghosts":
      return action.rank === state.rank && (action.answers.length || state.ghosts.length)
        ? { ...state, ghosts: action.answers.flatMap((answer) => Object.values(tracksOf(answer))) }
        : state;
    case "incidents":
      return { ...state, incidents: action.incidents };
    case "incident":
      return { ...state, incidents: withIncident(state.incidents, action.incident) };
    case "loading":
      return { ...state, recent: [] };
    case "series":
      return withSeries(state, action.answer);
    case "rows":
      return withRows(state, action);
    case "detail":
      return isSameRange(state.range, action.range)
        ? { ...state, detail: { range: action.range, tracks: tracksOf(action.answer) } }
        : state;
    case "bad-layers":
      return { ...state, badLayers: action.layers };
    case "norms":
      return isOfNorms(state, action)
        ? { ...state, norms: { ...state.norms, whole: action.whole, onset: action.onset } }
        : state;
    case "norms-detail":
      return isOfNorms(state, action)
        ? { ...state, norms: { ...state.norms, detail: { range: action.range, series: action.series } } }
        : state;
    case "zoom":
      return { ...state, range: wholeSteps(action.range) };
    case "follow":
      return { ...state, range: null, detail: null };
    case "select":
      return { ...state, incidentId: action.incidentId };
    case "scale":
      return { ...state, logScale: { ...state.logScale, [action.series]: action.log } };
    case "layer-map":
      return { ...state, layerMap: action.series, norms: NOTHING_READ.norms };
    case "rank":
      return { ...state, rank: action.rank, ...NOTHING_READ };
    case "stop-requested":
      return state.run ? { ...state, run: { ...state.run, isStopRequested: true } } : state;
    case "link":
      return { ...state, link: action.link };
  }
}

/** @param {SeriesAnswer} answer @returns {Tracks} */
function tracksOf(answer) {
  return Object.fromEntries(
    Object.entries(answer.series)
      .filter(([, series]) => series.kind !== "layers")
      .map(([name, series]) => [name, trackOf(series)]),
  );
}

/** @param {State} state @param {Extract<Action, {type: "events"}>} action @returns {State} */
function withEvents(state, { rank, validations, epochs }) {
  const seen = (/** @type {RunEvent[]} */ events) => events.map((event) => event.step).join();
  const isKnown = seen(epochs) === seen(state.epochs) && seen(validations) === seen(state.validations);
  if (rank !== state.rank || isKnown) return state;
  return { ...state, epochs, validations, validation: tracksOfEvents(validations) };
}

/** @param {Incident[]} incidents @param {Incident} incident @returns {Incident[]} */
function withIncident(incidents, incident) {
  const at = incidents.findIndex((known) => known.id === incident.id);
  if (at < 0) return [...incidents, incident];
  return incidents[at].revision > incident.revision ? incidents : incidents.with(at, incident);
}

/** What was loaded, and behind it what came live after it was read. @param {State} state @param {SeriesAnswer} answer @returns {State} */
function withSeries(state, answer) {
  const loaded = { ...state, tracks: tracksOf(answer), gaps: answer.gaps, isLoaded: true, recent: null };
  const later = (state.recent ?? []).filter((rows) => answer.cursor !== null && rows.cursor > answer.cursor);
  return { ...later.reduce(withRows, loaded), stale: state.stale };
}

/** @param {State} before @param {Rows} action @returns {State} */
function withRows(before, action) {
  if (action.rank !== before.rank || !before.isLoaded || !action.steps.length) return before;
  const state = before.recent
    ? { ...before, recent: [...before.recent, action].slice(-MOST_RECENT) }
    : before;
  const names = Object.keys(action.columns);
  const end = action.steps[action.steps.length - 1];
  const added = names.filter((name) => lastStepOf(state.tracks[name]) < end);
  const stale = state.stale + Number(added.length < names.length);
  if (!added.length) return { ...state, stale };
  const tracks = { ...state.tracks };
  for (const name of added)
    tracks[name] = appended(tracks[name] ?? emptyTrack(), action.steps, action.columns[name]);
  const isNews = added.some(
    (name) => leavesOut(state.tracks[name], action.steps[0]) || !isListed(state, name),
  );
  return { ...state, tracks, stale, news: state.news + Number(isNews) };
}

/** @param {State} state @param {{rank: number, layerMap: string}} read @returns {boolean} whether it is still asked for */
function isOfNorms(state, read) {
  return read.rank === state.rank && read.layerMap === state.layerMap;
}

/** @param {State} state @returns {LayerSeries | null} the norms of the layers for the shown range, as well as we have them */
export function shownNorms({ norms, range }) {
  return range && isSameRange(range, norms.detail?.range ?? null)
    ? (norms.detail?.series ?? null)
    : norms.whole;
}

/** Whether steps were passed over where none was before: the client may have declared them lost. @param {Track} track @param {number} step */
function leavesOut(track, step) {
  const end = track?.step.length - 1;
  return end > 0 && step > track.lastStep[end] + 1 && track.step[end] <= track.lastStep[end - 1] + 1;
}

/** @param {State} state @param {string} name @returns {boolean} */
function isListed(state, name) {
  return !state.run || state.run.series.includes(name);
}

/** @param {Range} range @returns {Range} */
function wholeSteps({ from, to }) {
  const first = Math.max(0, Math.floor(from));
  return { from: first, to: Math.max(first + 1, Math.ceil(to)) };
}

/** @param {Range | null} a @param {Range | null} b */
export function isSameRange(a, b) {
  return a?.from === b?.from && a?.to === b?.to;
}

/** @param {State} state @returns {number} */
export function lastStep(state) {
  return Math.max(state.run?.lastStep ?? 0, ...Object.values(state.tracks).map(lastStepOf));
}

/** @param {State} state @returns {Range} the steps that the charts show */
export function shownRange(state) {
  return state.range ?? { from: 0, to: Math.max(1, lastStep(state)) };
}

/** @param {State} state @param {string} name @returns {Track | undefined} */
export function shownTrack(state, name) {
  const isDetailed = state.detail && isSameRange(state.detail.range, state.range);
  return (
    (isDetailed ? state.detail?.tracks[name] : undefined) ?? state.tracks[name] ?? state.validation[name]
  );
}

/**
 * Incidents as a person should meet them: the worst first, then open before over, then the earliest.
 * @param {Incident[]} incidents @returns {Incident[]}
 */
export function ranked(incidents) {
  const order = (/** @type {Incident} */ item) => [
    SEVERITIES.indexOf(item.severity),
    STATES.indexOf(item.state),
    item.onsetStep,
  ];
  return incidents.toSorted((a, b) => {
    const [left, right] = [order(a), order(b)];
    const at = left.findIndex((value, i) => value !== right[i]);
    return at < 0 ? 0 : left[at] - right[at];
  });
}

/** @param {State} state @returns {Incident | null} the one to tell in full */
export function shownIncident(state) {
  const chosen = state.incidents.find((incident) => incident.id === state.incidentId);
  return chosen ?? ranked(state.incidents).find((incident) => incident.state !== "withdrawn") ?? null;
}

// The loader: what the run page reads over REST, when, and how often at most. It keeps no data, it dispatches.

import { ApiError, getEvents, getIncidents, getRun, getSeries } from "./api.js";
import { badLayerRange, badLayers, LAYER_SERIES } from "./badlayers.js";
import { chartsFor, isCountSeries } from "./instruments.js";
import { shownIncident } from "./state.js";

/** @typedef {import("./state.js").State} State */
/** @typedef {import("./state.js").Action} Action */
/**
 * `resume` takes the live data up again where the last load ended.
 * @typedef {{state: () => State, dispatch: (action: Action) => void, resume: (cursor: number | null) => void}} Page
 */

const DETAIL_AFTER_MS = 150; // zooming by key comes in bursts
const RELOAD_EVERY_MS = 5000;
const SETTLE_MS = 1500; // the live socket first repeats some of what a load has brought: no reason to load again
const PIXELS = 450; // twice as many buckets come back, and an envelope has two points each
const COUNT_PIXELS = 5000; // single steps for longer: how many of them are bad is no matter of an envelope
const EVENTS_EVERY_MS = 3000;
const MAX_GHOSTS = 4; // the latest
const LAYER_PIXELS = 2000; // single steps, not buckets: which layer was first is a matter of one step

/** @param {State} state @returns {string[]} the series that its charts need */
export function seriesNames(state) {
  return chartsFor(state.run?.series ?? []).map((chart) => chart.series);
}

/** @param {unknown} error @returns {string} */
export function problemText(error) {
  return `The run cannot be read: ${error instanceof Error ? error.message : error}`;
}

/** @param {unknown} error @returns {Action} */
function failure(error) {
  return error instanceof ApiError && error.status === 404
    ? { type: "gone", text: "There is no such run. It may have been deleted." }
    : { type: "problem", text: problemText(error) };
}

/** @param {Page} page */
export function createLoader({ state, dispatch, resume }) {
  let lastLoad = -Infinity;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let reloadTimer;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let detailTimer;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let eventsTimer;

  /** Read everything; what fails is tried again, but for a run that is not there. */
  async function load() {
    clearTimeout(reloadTimer);
    lastLoad = performance.now();
    dispatch({ type: "loading" });
    const { runId, rank } = state();
    try {
      const [run, incidents] = await Promise.all([getRun(runId), getIncidents(runId)]);
      dispatch({ type: "run", run });
      dispatch({ type: "incidents", incidents });
      const answer = await readSeries(null);
      if (rank !== state().rank) return;
      dispatch({ type: "series", answer });
      lastLoad = performance.now();
      resume(answer.cursor);
      await Promise.all([loadEvents(), loadGhosts(answer)]);
    } catch (error) {
      dispatch(failure(error));
      if (!state().isGone) reloadSoon();
    }
  }

  /**
   * Every series that the charts need, the counts in single steps as far as possible.
   * @param {import("./state.js").Range | null} range @returns {Promise<import("./records.js").SeriesAnswer>}
   */
  async function readSeries(range) {
    const { runId, rank } = state();
    const query = { rank, range, names: seriesNames(state()), pixels: PIXELS };
    const answer = await getSeries(runId, query);
    const names = query.names.filter(
      (name) => isCountSeries(name) && answer.series[name]?.kind === "buckets",
    );
    if (!names.length) return answer;
    const counts = await getSeries(runId, { ...query, names, pixels: COUNT_PIXELS });
    return { ...answer, series: { ...answer.series, ...counts.series } };
  }

  async function loadEvents() {
    const { runId, rank } = state();
    const [validations, epochs] = await Promise.all([
      getEvents(runId, "validation", rank),
      getEvents(runId, "epoch", rank),
    ]);
    dispatch({ type: "events", rank, validations, epochs });
  }

  /** The run goes on: there may be events, of which the live socket does not tell. */
  function eventsSoon() {
    eventsTimer ??= setTimeout(() => {
      eventsTimer = undefined;
      loadEvents().catch((error) => dispatch(failure(error)));
    }, EVENTS_EVERY_MS);
  }

  /** @param {import("./records.js").SeriesAnswer} answer */
  async function loadGhosts({ ghosts }) {
    const { runId, rank } = state();
    const reads = ghosts.slice(-MAX_GHOSTS).map(({ sessionId, firstStep, lastStep }) => {
      const range = { from: Math.max(0, firstStep - 1), to: lastStep }; // from where both ways were one
      return getSeries(runId, { names: ["loss"], pixels: PIXELS, rank, range, session: sessionId });
    });
    dispatch({ type: "ghosts", rank, answers: await Promise.all(reads) });
  }

  function reloadSoon() {
    clearTimeout(reloadTimer);
    reloadTimer = setTimeout(load, Math.max(0, lastLoad + RELOAD_EVERY_MS - performance.now()));
  }

  /** Rows came that we hold already, or that contradict them. */
  function onStale() {
    if (performance.now() > lastLoad + SETTLE_MS) reloadSoon();
  }

  /** Fetch the zoomed range at full resolution, a moment after the last zoom. */
  function wantDetail() {
    clearTimeout(detailTimer);
    detailTimer = setTimeout(loadDetail, DETAIL_AFTER_MS);
  }

  async function loadDetail() {
    const { range, rank } = state();
    if (!range) return;
    const wider = { from: Math.max(0, range.from - 1), to: range.to + 1 }; // so that the line reaches the edges
    try {
      const answer = await readSeries(wider);
      if (rank === state().rank) dispatch({ type: "detail", range, answer });
    } catch (error) {
      dispatch(failure(error));
    }
  }

  async function loadBadLayers() {
    const incident = shownIncident(state());
    if (!incident) return dispatch({ type: "bad-layers", layers: [] });
    const query = {
      names: LAYER_SERIES,
      pixels: LAYER_PIXELS,
      rank: incident.rank,
      range: badLayerRange(incident),
    };
    const series = await getSeries(state().runId, query).then(
      (answer) => answer.series,
      () => ({}), // without them the incident's own list is shown
    );
    if (incident === shownIncident(state()))
      dispatch({ type: "bad-layers", layers: badLayers(incident, series) });
  }

  return { load, reloadSoon, onStale, eventsSoon, wantDetail, loadBadLayers };
}

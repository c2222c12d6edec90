// The run page: fetches, listens, and shows the one state. Each part redraws only when its slice changed.

import { liveAddress } from "./api.js";
import { chartBuilder, drawCharts, loadPlotly } from "./charts.js";
import { byId, refill } from "./dom.js";
import { environmentView, firstBadView, layersView } from "./environment.js";
import { clipped, words } from "./format.js";
import { figuresView, stopView, toolbarView, whoView } from "./header.js";
import { createHeatLoader } from "./heatloader.js";
import { createHeatMap } from "./heatmap.js";
import { incidentView } from "./incidents.js";
import { chartsOf } from "./instruments.js";
import { openLive } from "./live.js";
import { createLoader, problemText, seriesNames } from "./loader.js";
import { initialState, isSameRange, reduce, shownIncident } from "./state.js";
import { hashOf, viewOf } from "./view.js";

/** @typedef {import("./state.js").State} State */
/** @typedef {import("./state.js").Action} Action */
/** @typedef {import("./state.js").RunDetail} RunDetail */

const DRAW_EVERY_MS = 200;
const REST_FOR_WORK = 3; // the machine is there for the training: the charts take a quarter of a core at most
const LINK_WORDS = { connecting: "Connecting", live: "Live", lost: "Reconnecting" };

const runId = decodeURIComponent(location.pathname.split("/").pop() ?? "");
let state = initialState(runId, viewOf(location.hash));
/** @type {State | null} */
let drawn = null;
/** @type {import("./charts.js").Plotly | null} */
let plotly = null;
/** @type {import("./live.js").Live | null} */
let live = null;
/** @type {number | null} */
let cursor = null;
let [isScheduled, isAsked, nextDraw] = [false, false, 0];

const loader = createLoader({
  state: () => state,
  dispatch,
  resume: (at) => {
    cursor = at;
    live?.resume(at);
  },
});

/** @param {Action} action */
function dispatch(action) {
  const before = state;
  state = reduce(state, action);
  if (state === before) return;
  if (!isSameRange(before.range, state.range)) loader.wantDetail();
  if (before.rank !== state.rank) void loader.load();
  if (shownIncident(before) !== shownIncident(state)) void loader.loadBadLayers();
  if (before.stale !== state.stale) loader.onStale();
  if (before.news !== state.news) loader.reloadSoon();
  schedule();
}

/** @param {Action} action what a click in an incident asks for: a zoom is no use below the edge of the window */
function dispatchFromCard(action) {
  dispatch(action);
  if (action.type === "zoom") byId("view").scrollIntoView();
}

function schedule() {
  isAsked = true; // also while a drawing is under way, which may be past what has just come into view
  if (isScheduled) return;
  isScheduled = true;
  const wait = Math.max(0, nextDraw - performance.now());
  setTimeout(() => requestAnimationFrame(draw), wait); // a hidden tab has no frames: nothing is drawn there
}

const heatMap = createHeatMap(
  byId("norms"),
  schedule,
  createHeatLoader(() => state, dispatch),
  (series) => dispatch({ type: "layer-map", series }),
);
const buildCharts = chartBuilder(byId("charts"), byId("more-charts"), dispatch, schedule);

async function draw() {
  isAsked = false;
  try {
    const work = await show();
    nextDraw = performance.now() + Math.max(DRAW_EVERY_MS, work * REST_FOR_WORK);
  } finally {
    isScheduled = false;
  }
  if (isAsked || state !== drawn) schedule();
}

/** @returns {Promise<number>} milliseconds of work on the charts */
function show() {
  const [now, before] = [state, drawn];
  drawn = now;
  const changed = (/** @type {(keyof State)[]} */ ...keys) => keys.some((key) => before?.[key] !== now[key]);
  if (changed("problem")) showProblem(now.problem);
  if (changed("link")) showLink(now.link);
  if (changed("run", "tracks", "epochs")) refill(byId("figures"), ...figuresView(now));
  if (now.run && changed("run")) showRun(now.run, before?.run ?? null);
  if (changed("incidents", "incidentId", "isLoaded") || before?.run?.state !== now.run?.state) {
    refill(byId("incidents"), ...incidentView(now, dispatchFromCard));
  }
  if (changed("range", "detail", "run", "tracks")) refill(byId("view"), ...toolbarView(now, dispatch));
  if (now.run && changed("run", "badLayers")) panel("first-bad", firstBadView(now.run, now.badLayers));
  if (changed("range", "rank", "incidentId", "logScale", "layerMap"))
    history.replaceState(null, "", hashOf(now) || location.pathname);
  byId("view").hidden = !now.run;
  if (now.isGone) {
    leave();
    return Promise.resolve(0);
  }
  const instruments = buildCharts(chartsOf(now));
  byId("more").hidden = !byId("more-charts").childElementCount;
  heatMap.draw(now, theme());
  return drawCharts(plotly, instruments, now, dispatch, theme());
}

/** Of a run that is not there, nothing but the message stays. */
function leave() {
  live?.close();
  byId("link").hidden = true;
  for (const part of byId("main").children)
    if (part instanceof HTMLElement) part.hidden = part.id !== "problem";
}

/** @param {RunDetail} run @param {RunDetail | null} before */
function showRun(run, before) {
  document.title = `${clipped(run.name, 80)} · trainvitals`;
  refill(byId("who"), ...whoView(run));
  // A button that is redrawn at every message would lose the question it asks.
  if (run.state !== before?.state || run.isStopRequested !== before.isStopRequested) {
    refill(byId("stop"), ...stopView(run, dispatch));
  }
  if (before?.environment !== run.environment) panel("environment", environmentView(run));
  if (before?.layers !== run.layers) panel("layers", layersView(run));
}

/** @param {string} id @param {HTMLElement[]} children */
function panel(id, children) {
  refill(byId(id), ...children);
  byId(id).hidden = !children.length;
}

/** @param {string | null} problem */
function showProblem(problem) {
  byId("problem").textContent = problem ?? "";
  byId("problem").hidden = problem === null;
}

/** @param {import("./state.js").Link} link */
function showLink(link) {
  byId("link").dataset.link = link;
  byId("link").textContent = LINK_WORDS[link];
}

/** @returns {string} */
function theme() {
  return `${document.documentElement.dataset.theme} ${matchMedia("(prefers-color-scheme: dark)").matches}`;
}

/** @param {import("./records.js").LiveMessage} message */
function receive(message) {
  if (message.t === "resync") return loader.reloadSoon();
  if (message.t === "gone" && message.runId === runId)
    return dispatch({ type: "gone", text: "This run was deleted." });
  if (message.t === "run" && message.run.runId === runId) {
    loader.eventsSoon();
    return dispatch({ type: "run-news", run: message.run });
  }
  if (message.t === "incident" && message.runId === runId) {
    announce(message.incident);
    return dispatch({ type: "incident", incident: message.incident });
  }
  if (message.t === "rows" && message.runId === runId) dispatch({ type: "rows", ...message });
}

/** @param {import("./records.js").Incident} incident */
function announce(incident) {
  const isKnown = state.incidents.some((known) => known.id === incident.id);
  if (!isKnown && incident.severity !== "info") {
    byId("news").textContent = `New incident, ${words(incident.kind)}: ${clipped(incident.verdict, 300)}`;
  }
}

document.addEventListener("themechange", schedule);
addEventListener("resize", schedule);
addEventListener("hashchange", () => {
  const view = viewOf(location.hash);
  dispatch(view.range ? { type: "zoom", range: view.range } : { type: "follow" });
  if (view.incidentId) dispatch({ type: "select", incidentId: view.incidentId });
  if (view.layerMap !== state.layerMap) dispatch({ type: "layer-map", series: view.layerMap });
});

await loader.load();
if (!state.isGone)
  live = openLive(liveAddress(), {
    cursor,
    subscriptions: (at) => [{ run_id: runId, rank: state.rank, series: seriesNames(state), cursor: at }],
    onReturn: loader.load,
    onLink: (link) => dispatch({ type: "link", link }),
    onMessage: receive,
  });
if (state.range) loader.wantDetail();
plotly = await loadPlotly().catch((error) => {
  dispatch({ type: "problem", text: problemText(error) });
  return null;
});
schedule();

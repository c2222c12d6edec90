// The head of the run page and the toolbar of its charts.

import { exportAddress, stopRun } from "./api.js";
import { ellipsis, h, stateMark } from "./dom.js";
import { ago, clipped, clock, duration, speed, whole } from "./format.js";
import { lastStep, shownRange } from "./state.js";

/** @typedef {import("./state.js").State} State */
/** @typedef {import("./state.js").Action} Action */
/** @typedef {import("./state.js").RunDetail} Run */
/** @typedef {(action: Action) => void} Dispatch */

const NAME_CHARS = 400;
const ALIVE = ["running", "stalled"];
const STOP_WORDS = ["Stop run", "Really stop?"];

/** @param {Run} run @returns {HTMLElement[]} */
export function whoView(run) {
  const started = `started ${clock(run.startedAt)} (${ago(run.startedAt, Date.now())})`;
  const context = [run.project, run.group, started, ranFor(run, Date.now() / 1000)]
    .filter(Boolean)
    .join(" · ");
  const tags = run.tags.map((tag) => h("span", { class: "tag" }, ellipsis(clipped(tag, 80))));
  return [
    h("h1", {}, ellipsis(clipped(run.name, NAME_CHARS))),
    h("p", { class: "muted small" }, ellipsis(clipped(context, NAME_CHARS)), ...tags),
  ];
}

/** @param {Run} run @param {number} now @returns {string} */
function ranFor(run, now) {
  const isAlive = ALIVE.includes(run.state);
  const end = isAlive ? now : run.lastSeenAt;
  if (run.startedAt === null || end === null) return "";
  return `${isAlive ? "running for" : "ran for"} ${duration(end - run.startedAt)}`;
}

/**
 * Steps a second over all that a run has trained, pauses between its sessions left out.
 * @param {Run} run @returns {number | null}
 */
export function averageSpeed({ sessions }) {
  let [steps, seconds] = [0, 0];
  for (const { rank, resumeStep, lastStep, startedAt, lastSeenAt } of sessions) {
    if (rank !== 0 || lastStep === null || startedAt === null || lastSeenAt === null) continue;
    steps += Math.max(0, lastStep + 1 - (resumeStep ?? 0));
    seconds += Math.max(0, lastSeenAt - startedAt);
  }
  return seconds > 0 && steps > 0 ? steps / seconds : null;
}

/** @param {State} state @returns {HTMLElement[]} */
export function figuresView(state) {
  const run = state.run;
  if (!run) return [];
  const figure = (/** @type {string} */ name, /** @type {Node | string} */ value) =>
    h("div", {}, h("span", { class: "muted small" }, name), h("b", {}, value));
  return [
    figure("State", stateMark(run.state)),
    ...epochText(state).map((text) => figure("Epoch", text)),
    figure("Step", whole(lastStep(state))),
    run.state === "running"
      ? figure("Steps/s", speed(run.stepsPerSecond))
      : figure("Steps/s, average", speed(averageSpeed(run))),
  ];
}

/** The epochs that are done, of how many. @param {State} state @returns {string[]} */
function epochText({ run, epochs }) {
  if (!epochs.length) return [];
  const done = Math.max(...epochs.map(({ epoch }) => (epoch ?? 0) + 1));
  const planned = run?.environment.epochs;
  return [`${whole(done)}${typeof planned === "number" && planned >= done ? ` of ${whole(planned)}` : ""}`];
}

/** Asks once more before it stops a training. @param {Run} run @param {Dispatch} dispatch @returns {HTMLElement[]} */
export function stopView(run, dispatch) {
  if (!ALIVE.includes(run.state)) return [];
  if (run.isStopRequested) return [h("span", { class: "muted" }, "Stop requested")];
  const button = h("button", { type: "button", class: "danger", "data-key": "stop" }, STOP_WORDS[0]);
  let isAsked = false;
  const ask = (/** @type {boolean} */ value) => {
    isAsked = value;
    button.textContent = STOP_WORDS[Number(value)];
  };
  button.addEventListener("blur", () => ask(false));
  button.addEventListener("click", () => {
    if (!isAsked) return ask(true);
    void stop(run.runId, dispatch);
  });
  return [button];
}

/** @param {string} runId @param {Dispatch} dispatch */
async function stop(runId, dispatch) {
  try {
    await stopRun(runId);
    dispatch({ type: "stop-requested" });
  } catch (error) {
    dispatch({ type: "problem", text: `Not stopped: ${error instanceof Error ? error.message : error}` });
  }
}

/** @param {State} state @param {Dispatch} dispatch @returns {HTMLElement[]} */
export function toolbarView(state, dispatch) {
  const range = shownRange(state);
  const zoomBy = (/** @type {number} */ factor, /** @type {number} */ shift) => () => {
    const half = ((range.to - range.from) / 2) * factor;
    const middle = (range.from + range.to) / 2 + shift * (range.to - range.from);
    dispatch({ type: "zoom", range: { from: middle - half, to: middle + half } });
  };
  const button = (/** @type {string} */ text, /** @type {string} */ label, /** @type {() => void} */ click) =>
    h(
      "button",
      { type: "button", class: "quiet", "aria-label": label, title: label, "data-key": label, click },
      text,
    );
  const isPaused = state.range !== null;
  return [
    followButton(state, dispatch),
    h(
      "span",
      { class: "muted range", "data-testid": "range" },
      `Steps ${whole(range.from)} – ${whole(range.to)}${isPaused && !state.detail ? " · loading detail" : ""}`,
    ),
    rankPicker(state, dispatch),
    h("span", { class: "spring" }),
    h("span", { class: "muted small hint" }, "Drag to zoom, double-click to follow"),
    button("←", "Earlier steps", zoomBy(1, -0.25)),
    button("→", "Later steps", zoomBy(1, 0.25)),
    button("+", "Zoom in", zoomBy(0.5, 0)),
    button("−", "Zoom out", zoomBy(2, 0)),
    h(
      "a",
      { class: "quiet", href: exportAddress(state.runId), "data-key": "csv", title: "All rows as CSV" },
      "CSV",
    ),
  ].filter((item) => item !== null);
}

/** @param {State} state @param {Dispatch} dispatch */
function followButton({ range, run }, dispatch) {
  const isPaused = range !== null;
  const isOver = !run || !ALIVE.includes(run.state);
  const text = isOver ? ["All steps", "Zoomed · show all"] : ["Following", "Paused · resume"];
  const attributes = {
    type: "button",
    id: "follow",
    "data-key": "follow",
    "aria-pressed": String(!isPaused),
  };
  const click = () => dispatch({ type: "follow" });
  return h(
    "button",
    { ...attributes, "data-paused": String(isPaused), "data-over": String(isOver), click },
    text[Number(isPaused)],
  );
}

/** @param {State} state @param {Dispatch} dispatch */
function rankPicker({ run, rank }, dispatch) {
  const ranks = [...new Set([rank, ...(run?.sessions.map((session) => session.rank) ?? [])])].sort(
    (a, b) => a - b,
  );
  if (ranks.length < 2) return null;
  const options = ranks.map((item) => h("option", { value: item, selected: item === rank }, `Rank ${item}`));
  const select = h("select", { "aria-label": "Rank", "data-key": "rank" }, ...options);
  select.addEventListener("change", () => dispatch({ type: "rank", rank: Number(select.value) }));
  return select;
}

// The board of runs: the worst first, kept up to date by the live socket.

import { getRuns, liveAddress, serverAddress } from "./api.js";
import { byId, codeBlock, ellipsis, h, stateMark } from "./dom.js";
import { ago, clipped, counted, speed, whole, words } from "./format.js";
import { openLive } from "./live.js";
import { sparkline } from "./sparkline.js";
import { trackOf } from "./track.js";
import { isCalm, ORDER, urgency, worstFirst } from "./urgency.js";

/** @typedef {import("./records.js").Run} Run */

const REFRESH_MS = 30_000; // the words "3 min ago" age even when nothing comes in
const NAME_CHARS = 400; // more would not be seen, and ten thousand slow the layout down

/** @type {Map<string, Run>} */
const runs = new Map();
let isDrawn = false;
let hidden = 0; // older runs that the server did not list

/** Draw at the next frame, however many messages came; a hidden tab has no frames. */
function draw() {
  if (isDrawn) return;
  isDrawn = true;
  requestAnimationFrame(() => {
    isDrawn = false;
    const sorted = [...runs.values()].sort(worstFirst);
    byId("summary").textContent = summary(sorted);
    show(sorted);
  });
}

/** @param {Run[]} sorted @returns {string} */
function summary(sorted) {
  if (!sorted.length) return "";
  const running = sorted.filter((run) => run.state === "running").length;
  const urgent = sorted.filter((run) => urgency(run) < 2).length;
  const older = hidden > 0 ? ` of ${whole(sorted.length + hidden)}` : "";
  const parts = [counted(sorted.length, "run") + older, `${running} running`];
  return [...parts, urgent ? `${urgent} need${urgent === 1 ? "s" : ""} attention` : "all well"].join(" · ");
}

/** @param {Run[]} sorted */
function show(sorted) {
  const board = byId("board");
  board.removeAttribute("aria-busy");
  if (!sorted.length) {
    if (!board.querySelector(".empty")) board.replaceChildren(emptyBoard());
    return;
  }
  const table = board.querySelector("tbody") ?? newTable(board);
  const old = new Map([...table.children].map((row) => [row.getAttribute("data-run"), row]));
  sorted.forEach((run, i) => {
    const known = old.get(run.runId);
    const row = known && shown.get(known) === run ? known : newRow(run, known);
    if (table.children[i] !== row) table.insertBefore(row, table.children[i] ?? null);
  });
  while (table.children.length > sorted.length) table.lastElementChild?.remove();
}

/** What each row shows. @type {WeakMap<Element, Run>} */
const shown = new WeakMap();

/** @param {Run} run @param {Element | undefined} known @returns {Element} */
function newRow(run, known) {
  const row = known ?? h("tr", { "data-run": run.runId });
  const isFocused = row.contains(document.activeElement);
  row.replaceChildren(...cells(run));
  row.setAttribute("data-urgency", ORDER[urgency(run)]);
  if (isFocused) row.querySelector("a")?.focus();
  shown.set(row, run);
  return row;
}

/** @param {HTMLElement} board @returns {HTMLElement} */
function newTable(board) {
  const heads = ["Run", "State", "Loss", "Step", "Steps/s", "Incident"];
  const body = h("tbody");
  const head = h("tr", {}, ...heads.map((text) => h("th", { scope: "col", class: columnOf(text) }, text)));
  board.replaceChildren(h("table", { class: "card runs" }, h("thead", {}, head), body));
  return body;
}

/** @param {string} text @returns {string} */
function columnOf(text) {
  return text.toLowerCase().replace("/", "-");
}

/** @param {Run} run @returns {HTMLElement[]} */
function cells(run) {
  const address = `runs/${encodeURIComponent(run.runId)}`;
  const name = h("a", { href: address, class: "name" }, ellipsis(clipped(run.name, NAME_CHARS)));
  const context = [run.project, run.group, ago(run.startedAt, Date.now())].filter(Boolean).join(" · ");
  const spark = run.sparkline ? sparkline(trackOf(run.sparkline)) : null;
  return [
    h("td", { class: "run" }, name, ellipsis(clipped(context, NAME_CHARS), "muted small")),
    h("td", { class: "state" }, stateMark(run.state)),
    h("td", { class: "loss" }, spark),
    h("td", { class: "step number" }, whole(run.lastStep)),
    h("td", { class: "steps-s number" }, run.state === "running" ? speed(run.stepsPerSecond) : "–"),
    h("td", { class: "incident" }, incident(run)),
  ];
}

/** @param {Run} run @returns {Node} */
function incident(run) {
  const worst = run.worst;
  if (!worst || worst.state === "withdrawn") return h("span", { class: "muted" }, "none");
  if (isCalm(run)) return h("span", { class: "muted", title: clipped(worst.verdict, NAME_CHARS) }, "–");
  const where = worst.onsetStep === null ? "" : `since step ${whole(worst.onsetStep)}`;
  const state = worst.state === "open" ? where : worst.state;
  return h(
    "span",
    { class: "worst", title: clipped(worst.verdict, NAME_CHARS) },
    h("b", { class: "severity", "data-severity": worst.severity }, words(worst.kind)),
    h("span", { class: "muted small" }, state),
  );
}

/** @returns {HTMLElement} the three lines to paste */
function emptyBoard() {
  const lines = [
    "pip install '.[server]'   # in a checkout of trainvitals",
    "from trainvitals import HealthReporter",
    `model.fit(..., callbacks=[HealthReporter("${serverAddress()}")])`,
  ];
  return h(
    "section",
    { class: "card empty" },
    h("h2", {}, "Waiting for the first run"),
    h("p", { class: "muted" }, "Three lines in your training script, and it shows up here by itself."),
    codeBlock(lines.join("\n"), "Copy the three lines", "empty"),
  );
}

/** @param {Run} run */
function take(run) {
  const before = runs.get(run.runId);
  const isNews = urgency(run) < 2 && (before ? urgency(before) : 2) > urgency(run);
  if (isNews && run.worst) byId("news").textContent = `${clipped(run.name, 80)}: ${words(run.worst.kind)}`;
  runs.set(run.runId, { ...run, sparkline: run.sparkline ?? before?.sparkline ?? null });
}

async function reload() {
  const problem = byId("problem");
  try {
    const found = await getRuns();
    hidden = found.total - found.runs.length;
    const ids = new Set(found.runs.map((run) => run.runId));
    for (const id of runs.keys()) if (!ids.has(id)) runs.delete(id);
    found.runs.forEach(take);
    problem.hidden = true;
  } catch (error) {
    problem.textContent = `The list of runs cannot be read: ${error instanceof Error ? error.message : error}`;
    problem.hidden = false;
  }
  draw();
}

const LINK_WORDS = { connecting: "Connecting", live: "Live", lost: "Reconnecting" };

await reload();
openLive(liveAddress(), {
  cursor: null,
  subscriptions: () => [{ board: true }],
  onReturn: reload,
  onLink: (link) => {
    byId("link").dataset.link = link;
    byId("link").textContent = LINK_WORDS[link];
  },
  onMessage: (message) => {
    if (message.t === "resync") void reload();
    if (message.t === "gone") runs.delete(message.runId);
    else if (message.t === "run") take(message.run);
    else return;
    draw();
  },
});
setInterval(() => {
  for (const [id, run] of runs) runs.set(id, { ...run });
  draw();
}, REFRESH_MS);

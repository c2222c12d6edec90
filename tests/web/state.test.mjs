import assert from "node:assert/strict";
import { test } from "node:test";

import { initialState, ranked, reduce, shownIncident, shownRange, shownTrack } from "../../web/state.js";

const column = (...values) => ({ values, present: null });
const answer = (steps, values, gaps = []) => ({
  rank: 0,
  cursor: 1,
  gaps,
  series: { loss: { kind: "raw", step: steps, value: column(...values) } },
});
const after = (...actions) => actions.reduce(reduce, initialState("run"));
const loaded = { type: "series", answer: answer([0, 1, 2], [3, 2, 1]) };
const rows = (steps, ...values) => ({ type: "rows", rank: 0, steps, columns: { loss: column(...values) } });
const incident = (id, severity, onsetStep, fields = {}) => ({
  id,
  severity,
  onsetStep,
  state: "open",
  revision: 1,
  ...fields,
});

test("live rows go on where the loaded series ends", () => {
  assert.deepEqual(after(loaded, rows([3, 4], 0.5, NaN)).tracks.loss.step, [0, 1, 2, 3, 4]);
});

test("rows that came while a load was under way are not lost with what it replaces", () => {
  const live = (cursor, steps, ...values) => ({ ...rows(steps, ...values), cursor });
  const [read, late] = [answer([0, 1, 2, 3], [3, 2, 1, 0.5]), live(7, [5, 6], 0.3, 0.2)];
  const during = [live(5, [3], 0.5), live(6, [4], 0.4), late];
  const state = after(loaded, { type: "loading" }, ...during, {
    type: "series",
    answer: { ...read, cursor: 5 },
  });
  assert.deepEqual(state.tracks.loss.step, [0, 1, 2, 3, 4, 5, 6]);
  assert.deepEqual(state.tracks.loss.last, [3, 2, 1, 0.5, 0.4, 0.3, 0.2]);
  assert.deepEqual([state.stale, state.news], [0, 0]);
});

test("no more is kept of the live rows than a load may need", () => {
  const many = Array.from({ length: 2000 }, (_, i) => ({ ...rows([3 + i], 1), cursor: i }));
  assert.equal(after(loaded, ...many).recent, null);
  assert.equal(after(loaded, { type: "loading" }, ...many).recent.length, 500);
});

test("rows of another rank change nothing", () => {
  const before = after(loaded);
  assert.equal(reduce(before, { ...rows([3], 9), rank: 1 }), before);
});

test("rows before anything is loaded are left to the load", () => {
  assert.deepEqual(after(rows([0], 1)).tracks, {});
});

test("rows of steps that we have already ask for a reload", () => {
  const state = after(loaded, rows([1, 2], 7, 7));
  assert.equal(state.stale, 1);
  assert.deepEqual(state.tracks.loss.last, [3, 2, 1]);
});

test("rows that pass steps over are shown, and the reason is asked for once", () => {
  const state = after(loaded, rows([9, 10], 5, 5));
  assert.deepEqual([state.news, state.tracks.loss.step], [1, [0, 1, 2, 9, 10]]);
  assert.equal(reduce(state, rows([11], 5)).news, 1);
});

test("a client that reports every tenth step passes nothing over", () => {
  const series = { type: "series", answer: answer([0, 10, 20], [3, 2, 1]) };
  assert.equal(after(series, rows([30, 40], 1, 1)).news, 0);
});

test("the first rows of a series that the run did not list ask for its new list", () => {
  const run = { type: "run", run: { runId: "run", series: [], lastStep: null } };
  assert.equal(after(run, loaded, rows([3], 1)).news, 1);
});

test("zooming pauses following, new rows leave the range alone, following resumes", () => {
  const zoomed = after(loaded, { type: "zoom", range: { from: 0.4, to: 1.2 } }, rows([3], 1));
  assert.deepEqual(shownRange(zoomed), { from: 0, to: 2 });
  assert.deepEqual(shownRange(reduce(zoomed, { type: "follow" })), { from: 0, to: 3 });
});

test("a zoomed range shows its detail, a late answer for another range does not", () => {
  const zoomed = after(loaded, { type: "zoom", range: { from: 1, to: 2 } });
  const late = reduce(zoomed, { type: "detail", range: { from: 0, to: 1 }, answer: answer([0], [8]) });
  assert.deepEqual(shownTrack(late, "loss").last, [3, 2, 1]);
  const shown = reduce(zoomed, { type: "detail", range: { from: 1, to: 2 }, answer: answer([1, 2], [9, 9]) });
  assert.deepEqual(shownTrack(shown, "loss").last, [9, 9]);
  const later = reduce(shown, { type: "detail", range: { from: 0, to: 1 }, answer: answer([0], [8]) });
  assert.deepEqual(shownTrack(later, "loss").last, [9, 9]);
  assert.deepEqual(shownTrack(reduce(shown, { type: "follow" }), "loss").last, [3, 2, 1]);
});

test("an incident that comes again replaces itself, an older revision does not", () => {
  const first = incident("a", "warning", 5, { revision: 2 });
  const state = after({ type: "incident", incident: first });
  const old = reduce(state, { type: "incident", incident: { ...first, revision: 1, severity: "info" } });
  assert.equal(old.incidents[0].severity, "warning");
  const newer = reduce(state, {
    type: "incident",
    incident: { ...first, revision: 3, severity: "critical" },
  });
  assert.deepEqual([newer.incidents.length, newer.incidents[0].severity], [1, "critical"]);
});

test("the worst open incident is told first, the chosen one instead if there is one", () => {
  const incidents = [
    incident("note", "info", 1),
    incident("over", "critical", 2, { state: "resolved" }),
    incident("late", "critical", 9),
    incident("early", "critical", 7),
  ];
  assert.deepEqual(
    ranked(incidents).map((item) => item.id),
    ["early", "late", "over", "note"],
  );
  const state = after({ type: "incidents", incidents });
  assert.equal(shownIncident(state).id, "early");
  assert.equal(shownIncident(reduce(state, { type: "select", incidentId: "note" })).id, "note");
});

test("another rank starts from nothing", () => {
  const state = after(loaded, { type: "rank", rank: 3 });
  assert.deepEqual([state.tracks, state.isLoaded], [{}, false]);
});

test("no action changes the state it was given", () => {
  const before = after(loaded);
  const copy = structuredClone(before);
  reduce(before, rows([3], 1));
  reduce(before, { type: "zoom", range: { from: 0, to: 1 } });
  assert.deepEqual(before, copy);
});

test("rows that one series holds already do not keep the others from theirs", () => {
  const value = { values: [1, 2], present: null };
  const series = { loss: { kind: "raw", step: [0, 1], value } };
  const counts = { kind: "raw", step: [0, 1, 2], value: { values: [0, 0, 0], present: null } };
  const answer = { rank: 0, cursor: 1, gaps: [], ghosts: [], series: { ...series, grad_nonfinite: counts } };
  const before = reduce(initialState("run"), { type: "series", answer });
  const column = { values: [3], present: null };
  const columns = { loss: column, grad_nonfinite: column };
  const after = reduce(before, { type: "rows", rank: 0, steps: [2], columns });
  assert.deepEqual(
    [after.tracks.loss.last, after.tracks.grad_nonfinite.last],
    [
      [1, 2, 3],
      [0, 0, 0],
    ],
  );
  assert.equal(after.stale, before.stale + 1);
});

test("a run that is gone stays gone, with the first words for it", () => {
  const gone = reduce(initialState("run"), { type: "gone", text: "This run was deleted." });
  const after = reduce(reduce(gone, { type: "gone", text: "no such run" }), {
    type: "problem",
    text: "HTTP 404",
  });
  assert.deepEqual([after.isGone, after.problem], [true, "This run was deleted."]);
});

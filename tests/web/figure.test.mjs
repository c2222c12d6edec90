import assert from "node:assert/strict";
import { test } from "node:test";

import { badLayerRange, badLayers } from "../../web/badlayers.js";
import { figureOf, spokenChart } from "../../web/figure.js";
import { CHARTS, chartsFor, isLogScale } from "../../web/instruments.js";
import { thinned } from "../../web/lane.js";
import { initialState, reduce } from "../../web/state.js";

const colors = new Proxy({}, { get: (_, name) => `color of ${String(name)}` });
const [loss] = CHARTS;
const steps = (count) => Array.from({ length: count }, (_, i) => i);

function stateOf(values, { incidents = [], gaps = [], present = null } = {}) {
  const value = { values, present };
  const series = { loss: { kind: "raw", step: steps(values.length), value } };
  const loaded = reduce(initialState("run"), {
    type: "series",
    answer: { rank: 0, cursor: 1, gaps, series },
  });
  return reduce(loaded, { type: "incidents", incidents });
}

const incident = (fields) => ({
  id: "i",
  kind: "gradual_divergence",
  severity: "critical",
  state: "open",
  rank: 0,
  onsetStep: 5,
  detectedStep: 6,
  nonfiniteStep: 8,
  firstBadLayers: [],
  ...fields,
});

test("no trace has more than 2,000 points, however long the run", () => {
  const { data } = figureOf(stateOf(steps(60_000).map((i) => Math.sin(i))), loss, colors);
  for (const trace of data) assert.ok(trace.x.length <= 2000, `${trace.x.length}`);
});

test("no trace is of a kind that needs eval", () => {
  const { data } = figureOf(stateOf([1, 2]), loss, colors);
  assert.deepEqual([...new Set(data.map((trace) => trace.type))], ["scatter"]);
});

test("non-finite and missing values leave a break that plotly does not bridge", () => {
  const { data } = figureOf(stateOf([1, NaN, 2, 3], { present: Uint8Array.of(1, 1, 1, 0) }), loss, colors);
  const line = data.find((trace) => trace.mode === "lines" && trace.connectgaps === false);
  assert.deepEqual(line.y, [1, null, 2, null]);
});

test("a count of one bad step among many is not drawn as 0", () => {
  const chart = CHARTS.find((item) => item.isCount);
  const values = steps(5000).map((i) => (i === 17 ? 9 : 0));
  const value = { values, present: null };
  const series = { [chart.series]: { kind: "raw", step: steps(values.length), value } };
  const state = reduce(initialState("run"), {
    type: "series",
    answer: { rank: 0, cursor: 1, gaps: [], series },
  });
  const line = figureOf(state, chart, colors).data.find((trace) => trace.connectgaps === false);
  assert.equal(Math.max(...line.y), 9);
});

test("an incident is a line at its onset in the colour of its severity, with its lead time shaded", () => {
  const { layout } = figureOf(stateOf(steps(10), { incidents: [incident({})] }), loss, colors);
  const line = layout.shapes.find((shape) => shape.type === "line");
  assert.deepEqual([line.x0, line.x1, line.line.color], [5, 5, "color of critical"]);
  const band = layout.shapes.find((shape) => shape.type === "rect");
  assert.deepEqual([band.x0, band.x1], [5, 8]);
  assert.deepEqual(
    layout.annotations.map((label) => label.text),
    ["Gradual divergence"],
  );
});

test("a withdrawn incident and one of another rank are not drawn", () => {
  const incidents = [incident({ state: "withdrawn" }), incident({ id: "j", rank: 1 })];
  assert.deepEqual(figureOf(stateOf(steps(10), { incidents }), loss, colors).layout.shapes, []);
});

test("a declared loss is shaded and named, and its reason cannot be markup", () => {
  const gaps = [{ firstStep: 2, lastStep: 4, reason: "<a href='x'>queue_full</a>" }];
  const { layout } = figureOf(stateOf(steps(10), { gaps }), loss, colors);
  assert.deepEqual([layout.shapes[0].x0, layout.shapes[0].x1], [1.5, 4.5]);
  assert.doesNotMatch(layout.annotations[0].text, /[<>'"=]/);
  assert.match(layout.annotations[0].text, /queue full/);
});

test("labels that would overlap stand on levels of their own", () => {
  const incidents = [5, 6, 7].map((onsetStep) => incident({ id: `i${onsetStep}`, onsetStep }));
  const { layout } = figureOf(stateOf(steps(100), { incidents }), loss, colors);
  assert.equal(new Set(layout.annotations.map((label) => label.yshift)).size, 3);
});

test("a chart says in words what it shows", () => {
  const text = spokenChart(stateOf([3, NaN, Infinity, 1]), loss);
  assert.match(
    text,
    /^Loss, steps 0 to 3: from 1 to 3, last 1; 1 NaN, 1 plus infinity, 0 minus infinity, 0 missing$/,
  );
});

test("an axis is logarithmic where the values span decades, unless one was chosen or values are not positive", () => {
  assert.equal(isLogScale(loss, undefined, [1e-3, 1e6]), true);
  assert.equal(isLogScale(loss, undefined, [1, 10]), false);
  assert.equal(isLogScale(loss, undefined, [0, 5]), false);
  assert.equal(isLogScale(loss, false, [1e-3, 1e6]), false);
});

test("every other series of a run gets a chart, within reason", () => {
  const charts = chartsFor(["loss", "accuracy_running", "batch_size"]);
  assert.deepEqual(
    charts.slice(CHARTS.length).map((chart) => chart.title),
    ["Accuracy, running"],
  );
  assert.ok(chartsFor(steps(500).map((i) => `metric_${i}`)).length <= 24);
});

test("marks that would overlap become one that keeps the first step and the sum", () => {
  const marks = [0, 1, 2, 100].map((step) => ({ step, lastStep: step, count: 2 }));
  assert.deepEqual(
    thinned(marks, (step) => step * 3).map((item) => item.mark),
    [
      { step: 0, lastStep: 2, count: 6 },
      { step: 100, lastStep: 100, count: 2 },
    ],
  );
});

test("the bad layers come in the order of their first bad step, with what was lost and what was before", () => {
  const layers = ["a", "b", "c"];
  const table = (values, present = null) => ({
    kind: "layers",
    layers,
    step: [4, 5, 6, 7],
    value: { values, present },
  });
  const series = {
    layer_grad_nonfinite: table([0, 0, 0, 0, 0, 12, 7, 0, 12, 0, 0, 0]),
    layer_grad_norm: table(
      [1, 2, 3, 1.5, NaN, NaN, Infinity, 2, NaN, 8, 8, 8],
      Uint8Array.of(1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1),
    ),
  };
  assert.deepEqual(badLayers(incident({}), series), [
    { name: "c", step: 5, count: 12, normBefore: 3 },
    { name: "a", step: 6, count: 7, normBefore: 1.5 },
  ]);
  const named = badLayers(incident({ firstBadLayers: ["gone", "a"] }), series);
  assert.deepEqual(
    named.map((layer) => layer.name),
    ["gone", "a", "c"],
  );
  assert.ok(badLayerRange(incident({})).from <= 5);
});

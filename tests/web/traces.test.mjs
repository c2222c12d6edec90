// Stems of counts, and series that are measured now and then.

import assert from "node:assert/strict";
import { test } from "node:test";

import { figureOf, shareText } from "../../web/figure.js";
import { CHARTS, chartsFor } from "../../web/instruments.js";
import { initialState, reduce } from "../../web/state.js";
import { sampled, shareAbove, totalsOf, trackOf } from "../../web/track.js";

const colors = new Proxy({}, { get: (_, name) => `color of ${String(name)}` });
const bad = CHARTS.find((chart) => chart.isCount);
const steps = (count) => Array.from({ length: count }, (_, i) => i);
const column = (values) => ({ values, present: null });
const raw = (values, present = null) => ({
  kind: "raw",
  step: values.map((_, i) => i),
  value: { values, present },
});

function stateOf(name, series) {
  const answer = { rank: 0, cursor: 1, gaps: [], ghosts: [], series: { [name]: series } };
  return reduce(initialState("run"), { type: "series", answer });
}

const stemsOf = (state) => figureOf(state, bad, colors).data.filter((trace) => trace.name === "stems");

test("a count has a stem for each step where it is not 0, and nothing where it is", () => {
  const state = stateOf(bad.series, raw([0, 7, 0, 0, 9]));
  const [stems, ...others] = stemsOf(state);
  assert.deepEqual(others, []);
  assert.deepEqual(stems.x, [1, 1, null, 4, 4, null]);
  assert.deepEqual(stems.y, [0, 7, null, 0, 9, null]);
  assert.equal(stems.opacity, 1);
  assert.equal(shareText(state, bad), "in 2 of 5 steps");
});

test("of many steps every bad one is counted, and the ink is paler where fewer are bad", () => {
  const values = steps(6000).map((i) => (i < 3000 ? Number(i % 10 === 0) : 1));
  const state = stateOf(bad.series, raw(values));
  assert.equal(shareText(state, bad), "in 3,300 of 6,000 steps");
  const tones = stemsOf(state);
  for (const trace of figureOf(state, bad, colors).data) assert.ok(trace.x.length <= 2000);
  const toneAt = (step) => tones.find((trace) => trace.x.some((x) => x !== null && Math.abs(x - step) < 30));
  assert.ok(toneAt(1000).opacity < 0.5);
  assert.equal(toneAt(5000).opacity, 1);
});

test("where the server's buckets do not say how many steps were bad, the page does not either", () => {
  const none = [0, 0, 0];
  const series = {
    kind: "buckets",
    step: [0, 10, 20],
    lastStep: [9, 19, 29],
    min: column([0, 0, 3]),
    max: column([0, 5, 5]),
    last: column([0, 0, 4]),
    count: [10, 10, 10],
    nan: none,
    posinf: none,
    neginf: none,
    missing: none,
  };
  assert.deepEqual(shareAbove(trackOf(series)), { least: 11, most: 19, rows: 30 });
  const state = stateOf(bad.series, series);
  assert.equal(shareText(state, bad), "in 11 to 19 of 30 steps");
  const tops = figureOf(state, bad, colors).data.at(-1);
  assert.match(tops.text[0], /^steps 10 to 19: at least 1 of 10 steps<br>at most <b>5<.b>$/);
});

test("the tops of few stems are dots; those of many would be a line, and are not seen", () => {
  const topOf = (count) =>
    figureOf(stateOf(bad.series, raw(steps(count).map(() => 1))), bad, colors).data.at(-1).marker.opacity;
  assert.deepEqual([topOf(5), topOf(200)], [1, 0]);
});

test("a count that is 0 throughout says so", () => {
  assert.equal(shareText(stateOf(bad.series, raw([0, 0])), bad), "in none of 2 steps");
});

test("a running mean is a line through what was sampled, and nothing is missing between", () => {
  const present = Uint8Array.of(1, 0, 0, 1, 0, 1);
  const series = raw([0.5, 0, 0, 0.6, 0, NaN], present);
  const track = sampled(trackOf(series));
  assert.deepEqual(track.step, [0, 3, 5]);
  assert.deepEqual(totalsOf(track), { nan: 1, posinf: 0, neginf: 0, missing: 0 });
  const chart = chartsFor(["accuracy_running"]).at(-1);
  assert.match(chart.note, /running mean as Keras reports it, sampled/);
  const figure = figureOf(stateOf("accuracy_running", series), chart, colors);
  const line = figure.data.find((trace) => trace.connectgaps === false);
  assert.deepEqual(line.y, [0.5, 0.6, null]);
});

// Validations and epochs: from the answer to what the charts show.

import assert from "node:assert/strict";
import { test } from "node:test";

import { mustEvents, tracksOfEvents } from "../../web/events.js";
import { figureOf, legendOf } from "../../web/figure.js";
import { CHARTS, chartsOf } from "../../web/instruments.js";
import { initialState, reduce } from "../../web/state.js";

const colors = new Proxy({}, { get: (_, name) => `color of ${String(name)}` });
const [loss] = CHARTS;
const event = (step, data) => ({ step, kind: "validation", time: 0, data });
const read = (...events) => mustEvents({ events });
const column = (values) => ({ values, present: null });

const answer = (values, fields = {}) => ({
  rank: 0,
  cursor: 1,
  gaps: [],
  ghosts: [],
  series: { loss: { kind: "raw", step: values.map((_, i) => i), value: column(values) } },
  ...fields,
});

function stateOf(validations, epochs = []) {
  const loaded = reduce(initialState("run"), { type: "series", answer: answer([9, 8, 7, 6]) });
  return reduce(loaded, { type: "events", rank: 0, validations, epochs });
}

test("a number by name is a number, and what is none is left out", () => {
  const [first] = read(event(3, { epoch: 0, val_loss: "NaN", val_f1: 0.5, note: "hello", list: [1] }));
  assert.deepEqual(first, { step: 3, epoch: 0, metrics: { val_loss: NaN, val_f1: 0.5 } });
  assert.throws(() => read({ kind: "validation", data: {} }), /event.step/);
});

test("the validation loss stands at its steps on the loss chart, with a legend", () => {
  const state = stateOf(read(event(1, { val_loss: 5 }), event(3, { val_loss: 4, val_f1: 0.5 })));
  const trace = figureOf(state, loss, colors).data.find((item) => item.name === "validation loss");
  assert.deepEqual([trace.x, trace.y, trace.mode], [[1, 3], [5, 4], "lines+markers"]);
  assert.deepEqual(
    legendOf(state, loss).map((entry) => entry.text),
    ["each batch", "validation loss"],
  );
  assert.deepEqual(legendOf(stateOf([]), loss), []);
});

test("a validation loss that is not finite is said in the legend", () => {
  const state = stateOf(read(event(1, { val_loss: "NaN" }), event(3, { val_loss: "Infinity" })));
  assert.equal(legendOf(state, loss)[1].text, "validation loss, 2 not finite");
});

test("every other metric of a validation has a chart of its own", () => {
  const state = stateOf(read(event(1, { val_loss: 5, val_accuracy: 0.5 })));
  const extra = chartsOf(state).slice(CHARTS.length);
  assert.deepEqual(
    extra.map((chart) => chart.title),
    ["Validation accuracy"],
  );
  const line = figureOf(state, extra[0], colors).data.find((trace) => trace.connectgaps === false);
  assert.deepEqual([line.x, line.y], [[1], [0.5]]);
});

test("the end of an epoch is a tick, and events that are known change nothing", () => {
  const epochs = read(event(1, { epoch: 0 }), event(3, { epoch: 1 }));
  const state = stateOf([], epochs);
  const ticks = figureOf(state, loss, colors).layout.shapes.filter((shape) => shape.name === "epoch");
  assert.deepEqual(
    ticks.map((tick) => tick.x0),
    [1, 3],
  );
  assert.equal(reduce(state, { type: "events", rank: 0, validations: [], epochs: [...epochs] }), state);
  assert.equal(reduce(state, { type: "events", rank: 1, validations: [], epochs: [] }), state);
});

test("an earlier session's way is a line of its own, told in the legend, and no part of the scale's other charts", () => {
  const ghost = answer([4, 5]);
  const state = reduce(stateOf([]), { type: "ghosts", rank: 0, answers: [ghost] });
  const trace = figureOf(state, loss, colors).data.find((item) => item.name === "earlier session");
  assert.deepEqual([trace.x, trace.y, trace.line.color], [[0, 1], [4, 5], "color of missing"]);
  assert.equal(legendOf(state, loss)[1].text, "earlier session");
  assert.ok(!figureOf(state, CHARTS[1], colors).data.some((item) => item.name === "earlier session"));
});

test("another rank's events are not kept", () => {
  const state = stateOf(read(event(1, { val_loss: 5 })));
  assert.deepEqual(reduce(state, { type: "rank", rank: 1 }).validation, {});
  assert.deepEqual(tracksOfEvents([]), {});
});

import assert from "node:assert/strict";
import { test } from "node:test";

import {
  cellText,
  colorOf,
  extentOf,
  firstBadText,
  gridOf,
  held,
  KINDS,
  measured,
  mediansOf,
  pixelsOf,
  rgbOf,
  rowsOf,
  shadeOf,
  stepsOf,
} from "../../web/heat.js";
import { shownMap } from "../../web/layermaps.js";
import { initialState, reduce, shownNorms } from "../../web/state.js";

const colors = {
  low: [0, 0, 0],
  middle: [100, 100, 100],
  high: [200, 200, 200],
  nan: [255, 0, 0],
  posinf: [255, 0, 255],
  neginf: [0, 255, 0],
};

/** A table `[rows][layers]`; undefined is missing. */
function series(rows, { step = rows.map((_, i) => i), lastStep = step } = {}) {
  const cells = rows.flat();
  return {
    kind: "layers",
    layers: rows[0].map((_, i) => `layer_${i}`),
    step,
    lastStep,
    value: {
      values: cells.map((cell) => cell ?? 0),
      present: Uint8Array.from(cells, (cell) => Number(cell !== undefined)),
    },
  };
}

/** The cells of one layer in words. */
function cells(grid, layer) {
  const from = layer * grid.columns;
  return [...grid.kind.slice(from, from + grid.columns)].map((kind, i) =>
    KINDS[kind] === "finite" ? grid.value[from + i] : KINDS[kind],
  );
}

test("layers of which a series knows nothing have no row, unless it knows nothing of all", () => {
  const table = series([
    [undefined, 2, undefined, 4],
    [undefined, 3, undefined, undefined],
  ]);
  const grid = measured(gridOf(table, extentOf(table), 100), table);
  assert.deepEqual(grid.layers, ["layer_1", "layer_3"]);
  assert.deepEqual(
    [cells(grid, 0), cells(grid, 1)],
    [
      [2, 3],
      [4, "missing"],
    ],
  );
  const empty = series([[undefined, undefined]]);
  assert.equal(measured(gridOf(empty, { from: 0, to: 0 }, 9), empty).layers.length, 2);
});

test("a share is its own colour and has no median beside it", () => {
  const table = series([[0, 0.5, 1]]);
  const grid = gridOf(table, { from: 0, to: 0 }, 9);
  const pixels = pixelsOf(grid, null, colors);
  assert.deepEqual([pixels[0], pixels[4], pixels[8]], [0, 100, 200]);
  assert.equal(cellText(grid, null, 1, 0), "layer_1, step 0: 0.5");
});

test("few steps have a column each, and the five kinds of cells stay apart", () => {
  const table = series([
    [1, 0],
    [NaN, 2],
    [Infinity, undefined],
    [-Infinity, 3],
  ]);
  const grid = gridOf(table, extentOf(table), 100);
  assert.deepEqual(cells(grid, 0), [1, "nan", "posinf", "neginf"]);
  assert.deepEqual(cells(grid, 1), [0, 2, "missing", 3]);
});

test("steps that share a cell show their worst, never their mean", () => {
  const table = series([1, 9, 2, NaN, Infinity, 5, 4, undefined].map((cell) => [cell]));
  const grid = gridOf(table, extentOf(table), 4);
  assert.deepEqual(cells(grid, 0), [9, "nan", "posinf", 4]);
});

test("a cell is missing only where none of its steps has a value", () => {
  const table = series([undefined, undefined, undefined, 3].map((cell) => [cell]));
  assert.deepEqual(cells(gridOf(table, extentOf(table), 2), 0), ["missing", 3]);
});

test("what is measured now and then is shown until the next time, and tells when that was", () => {
  const table = series([
    [undefined, 1],
    [2, 3],
    [undefined, undefined],
    [undefined, undefined],
    [5, undefined],
  ]);
  const grid = held(gridOf(table, { from: 0, to: 6 }, 100), table);
  assert.deepEqual(cells(grid, 0), ["missing", 2, 2, 2, 5, 5, 5]);
  assert.deepEqual(cells(grid, 1), [1, 3, 3, 3, "missing", "missing", "missing"]);
  assert.equal(cellText(grid, [2, 3], 0, 3), "layer_0, step 1: 2, 1 × its median");
});

test("a zoom between two measurements shows the one before it", () => {
  const table = series([[2], [undefined], [7]], { step: [0, 10, 20], lastStep: [9, 19, 20] });
  const grid = held(gridOf(table, { from: 12, to: 15 }, 100), table);
  assert.deepEqual(cells(grid, 0), [2, 2, 2, 2]);
  assert.equal(cellText(grid, [NaN], 0, 1), "layer_0, steps 0 to 9: 2");
  assert.deepEqual(cells(held(gridOf(table, { from: 19, to: 21 }, 100), table), 0), [2, 7, 7]);
});

test("a run is shown by the series that it has, the chosen one first", () => {
  const state = { ...initialState("run"), run: { layerSeries: ["layer_update_ratio", "layer_grad_norm"] } };
  assert.equal(shownMap(state).series, "layer_grad_norm");
  assert.equal(shownMap({ ...state, layerMap: "layer_update_ratio" }).series, "layer_update_ratio");
  assert.equal(shownMap({ ...state, layerMap: "layer_weight_norm" }).series, "layer_grad_norm");
  assert.equal(shownMap(initialState("run")), null);
});

test("steps for which there is no row are a gap", () => {
  const table = series([[1], [2]], { step: [0, 3] });
  assert.deepEqual(cells(gridOf(table, extentOf(table), 100), 0), [1, "missing", "missing", 2]);
});

test("what the server put together fills all columns of its steps", () => {
  const table = series([[1], [NaN]], { step: [0, 4], lastStep: [3, 7] });
  assert.deepEqual(cells(gridOf(table, extentOf(table), 4), 0), [1, 1, "nan", "nan"]);
});

test("a zoom takes in only its own steps", () => {
  const table = series(Array.from({ length: 50 }, (_, i) => [i]));
  assert.deepEqual(cells(gridOf(table, { from: 20, to: 22 }, 100), 0), [20, 21, 22]);
});

test("each step lies in the steps of exactly one column, however many there are", () => {
  for (const [span, columns] of [
    [7, 3],
    [1000, 7],
    [499, 498],
    [999_901, 497],
  ]) {
    const grid = { range: { from: 5, to: 5 + span - 1 }, columns };
    let next = 5;
    for (let column = 0; column < columns; column++) {
      const steps = stepsOf(grid, column);
      assert.equal(steps.from, next);
      assert.ok(steps.to >= steps.from);
      next = steps.to + 1;
    }
    assert.equal(next, 5 + span);
  }
});

test("one bad step of a million has a cell of its own colour, for one layer and for sixty", () => {
  for (const count of [1, 60]) {
    const rows = Array.from({ length: 1000 }, () => Array(count).fill(1));
    rows[707][count - 1] = NaN;
    const step = rows.map((_, i) => i * 1000);
    const table = series(rows, { step, lastStep: step.map((first) => first + 999) });
    const grid = gridOf(table, extentOf(table), 500);
    const bad = cells(grid, count - 1).flatMap((cell, i) => (cell === "nan" ? [i] : []));
    assert.deepEqual(bad, [353]);
  }
});

test("a layer's median is over its finite norms above 0", () => {
  const table = series([
    [1, NaN],
    [NaN, 0],
    [0, Infinity],
    [5, undefined],
    [3, 0],
  ]);
  assert.deepEqual(mediansOf(table), [3, NaN]);
});

test("the colour is the ratio to the layer's median, from a hundredth to a hundred times", () => {
  assert.deepEqual(
    [1, 10, 100, 1e9, 0.1, 0.01, 0].map((norm) => shadeOf(norm, 1)),
    [0.5, 0.75, 1, 1, 0.25, 0, 0],
  );
  assert.equal(shadeOf(7, NaN), 0.5);
  assert.deepEqual(
    [0, 0.25, 0.5, 1].map((shade) => colorOf(shade, colors)[0]),
    [0, 50, 100, 200],
  );
});

test("missing cells are transparent, and each non-finite kind has its own colour", () => {
  const table = series([[NaN], [Infinity], [-Infinity], [undefined], [1]]);
  const pixels = pixelsOf(gridOf(table, extentOf(table), 9), [1], colors);
  assert.deepEqual(
    Array.from({ length: 5 }, (_, i) => [...pixels.slice(i * 4, i * 4 + 4)]),
    [
      [255, 0, 0, 255],
      [255, 0, 255, 255],
      [0, 255, 0, 255],
      [0, 0, 0, 0],
      [100, 100, 100, 255],
    ],
  );
});

test("a cell says its layer, its steps and its value", () => {
  const table = series([
    [2, NaN],
    [1, undefined],
  ]);
  const grid = gridOf(table, extentOf(table), 9);
  assert.equal(cellText(grid, [0.5, 1], 0, 0), "layer_0, step 0: 2, 4 × its median");
  assert.equal(cellText(grid, [0.5, 1], 1, 0), "layer_1, step 0: NaN");
  assert.equal(cellText(grid, [0.5, 1], 1, 1), "layer_1, step 1: missing");
  const wide = gridOf(table, extentOf(table), 1);
  assert.equal(cellText(wide, [0.5, NaN], 0, 0), "layer_0, steps 0 to 1: 2, 4 × its median");
});

test("a name of any length does not burst a sentence", () => {
  const table = { ...series([[NaN]]), layers: ["x".repeat(10_000)] };
  assert.ok(firstBadText(table).length < 120);
  assert.ok(cellText(gridOf(table, extentOf(table), 9), [1], 0, 0).length < 120);
});

test("the first layer that was not finite is named with its step", () => {
  assert.equal(firstBadText(series([[1, 2]])), "");
  assert.equal(
    firstBadText(
      series([
        [1, 2],
        [1, NaN],
        [NaN, NaN],
      ]),
    ),
    "first not finite: layer_1, step 1",
  );
  assert.equal(
    firstBadText(
      series([
        [1, 2],
        [NaN, Infinity],
      ]),
    ),
    "first not finite: every layer, step 1",
  );
  assert.equal(
    firstBadText(series([[NaN, NaN, NaN, NaN, 1]], { step: [64], lastStep: [127] })),
    "first not finite: layer_0, layer_1 and 2 more, steps 64 to 127",
  );
});

test("rows are tall for few layers and flat for many, whose names then stand beside some", () => {
  assert.deepEqual(rowsOf(1), { row: 20, every: 1 });
  assert.deepEqual(rowsOf(60), { row: 6, every: 3 });
  assert.deepEqual(rowsOf(1000), { row: 4, every: 4 });
});

test("a colour of the style sheet is read as numbers", () => {
  assert.deepEqual(rgbOf("rgb(194, 59, 14)"), [194, 59, 14]);
});

test("norms of another rank or series are not shown, and those of a zoom only while it lasts", () => {
  const [whole, detail] = [series([[1]]), series([[2]])];
  const [range, layerMap] = [{ from: 0, to: 5 }, "layer_grad_norm"];
  let state = reduce(initialState("run"), { type: "norms", rank: 1, layerMap, whole, onset: null });
  assert.equal(shownNorms(state), null);
  state = reduce(state, { type: "norms", rank: 0, layerMap: "layer_weight_norm", whole, onset: null });
  assert.equal(shownNorms(state), null);
  state = reduce(state, { type: "norms", rank: 0, layerMap, whole, onset: null });
  state = reduce(state, { type: "zoom", range });
  assert.equal(shownNorms(state), whole);
  state = reduce(state, { type: "norms-detail", rank: 0, layerMap, range, series: detail });
  assert.equal(shownNorms(state), detail);
  assert.equal(shownNorms(reduce(state, { type: "follow" })), whole);
});

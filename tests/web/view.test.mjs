import assert from "node:assert/strict";
import { test } from "node:test";

import { ago, number, speed, words } from "../../web/format.js";
import { pauseMs } from "../../web/live.js";
import { hashOf, viewOf } from "../../web/view.js";

test("a view survives the way through the address", () => {
  const view = {
    range: { from: 800, to: 904 },
    rank: 2,
    incidentId: "run:sudden_nan:11&x=#1",
    logScale: { loss: true, grad_norm: false },
    layerMap: "layer_update_ratio",
  };
  assert.deepEqual(viewOf(hashOf(view)), view);
});

test("the default view has no hash, and nonsense in it means the default", () => {
  const plain = { range: null, rank: 0, incidentId: null, logScale: {}, layerMap: "layer_grad_norm" };
  assert.equal(hashOf(plain), "");
  assert.deepEqual(viewOf("#from=9&to=3&rank=-1&rank=x"), plain);
  assert.deepEqual(viewOf("#from=<script>&to=5&layers=loss"), plain);
});

test("the four non-numbers are written apart", () => {
  assert.deepEqual([NaN, Infinity, -Infinity, null].map(number), ["NaN", "+Inf", "−Inf", "–"]);
});

test("numbers of any size stay short", () => {
  assert.deepEqual([0, 0.1, 65536, 1.5e-8, -3.25e12, 12.3456789].map(number), [
    "0",
    "0.1",
    "65,536",
    "1.50e−8",
    "−3.25e12",
    "12.346",
  ]);
});

test("identifiers are read as words", () => {
  assert.deepEqual(["sudden_nan", "nonfinite_weight", "float16_mask_overflow"].map(words), [
    "Sudden NaN",
    "Non-finite weight",
    "float16 mask overflow",
  ]);
});

test("speeds and ages are written as one would say them", () => {
  assert.deepEqual([null, 0.123, 41.234, 1234.5].map(speed), ["–", "0.12", "41.2", "1,235"]);
  const now = 1_000_000_000;
  assert.equal(ago(now / 1000 - 59, now), "just now");
  assert.equal(ago(now / 1000 - 600, now), "10 min ago");
  assert.equal(ago(now / 1000 - 90_000, now), "1 day ago");
});

test("the pauses between attempts grow, have a cap and are spread", () => {
  assert.deepEqual(
    [0, 1, 2].map((attempt) => pauseMs(attempt, 1)),
    [500, 1000, 2000],
  );
  assert.equal(pauseMs(50, 1), 15_000);
  assert.equal(pauseMs(2, 0), 1000);
});

import assert from "node:assert/strict";
import { test } from "node:test";

import {
  appended,
  emptyTrack,
  envelopeOf,
  extentOf,
  lineOf,
  marksOf,
  MAX_BUCKETS,
  totalsOf,
  trackOf,
} from "../../web/track.js";

const raw = (values, present = null) => ({
  kind: "raw",
  step: values.map((_, i) => i),
  value: { values, present: present && Uint8Array.from(present) },
});

test("the line breaks at a missing value and at every non-finite one", () => {
  const track = trackOf(raw([1, NaN, 2, Infinity, 3, -Infinity, 0, 4], [1, 1, 1, 1, 1, 1, 0, 1]));
  assert.deepEqual(lineOf(track, []).y, [1, null, 2, null, 3, null, null, 4]);
});

test("NaN, +Inf, -Inf and missing are counted apart, within a range", () => {
  const track = trackOf(raw([1, NaN, NaN, Infinity, -Infinity, NaN, 4], [1, 1, 1, 1, 1, 0, 1]));
  assert.deepEqual(totalsOf(track), { nan: 2, posinf: 1, neginf: 1, missing: 1 });
  assert.deepEqual(totalsOf(track, 2, 3), { nan: 1, posinf: 1, neginf: 0, missing: 0 });
  assert.deepEqual(marksOf(track, "posinf", 0, 9), [{ step: 3, lastStep: 3, count: 1 }]);
});

test("a value of 0 that is missing is not drawn as 0", () => {
  assert.deepEqual(lineOf(trackOf(raw([5, 0, 5], [1, 0, 1])), []).y, [5, null, 5]);
});

test("no spike and no count is lost however many rows come", () => {
  let track = emptyTrack();
  const [rows, chunk] = [50_000, 500];
  for (let first = 0; first < rows; first += chunk) {
    const steps = Array.from({ length: chunk }, (_, i) => first + i);
    const values = steps.map((step) =>
      step === 31_234 ? 1e9 : step === 31_240 ? -1e9 : step % 1000 === 7 ? NaN : 1,
    );
    track = appended(track, steps, { values, present: null });
    assert.ok(track.step.length <= MAX_BUCKETS);
  }
  assert.deepEqual(extentOf(track), [-1e9, 1e9]);
  assert.equal(totalsOf(track).nan, 50);
  assert.equal(
    track.count.reduce((a, b) => a + b),
    rows,
  );
  assert.ok(envelopeOf(track, []).y.includes(1e9));
  assert.ok(envelopeOf(track, []).x.length <= 2000);
});

test("rows that are already there are left out", () => {
  const track = appended(trackOf(raw([1, 2, 3])), [1, 2, 3, 4], { values: [9, 9, 4, 5], present: null });
  assert.deepEqual(track.step, [0, 1, 2, 3, 4]);
  assert.deepEqual(track.last, [1, 2, 3, 4, 5]);
});

test("the line is cut where the client declared a loss, and only there", () => {
  const track = trackOf({
    kind: "raw",
    step: [0, 10, 20, 30],
    value: { values: [1, 2, 3, 4], present: null },
  });
  const line = lineOf(track, [{ firstStep: 11, lastStep: 19, reason: "queue_full" }]);
  assert.deepEqual(line.y, [1, 2, null, 3, 4]);
});

test("a bucket without a finite value parts the envelope in two", () => {
  const column = (values) => ({ values, present: null });
  const none = [0, 0, 0, 0, 0];
  const track = trackOf({
    kind: "buckets",
    step: [0, 10, 20, 30, 40],
    lastStep: [9, 19, 29, 39, 49],
    min: column([1, 1, NaN, 2, 2]),
    max: column([3, 3, NaN, 4, 4]),
    last: column([2, 2, NaN, 3, 3]),
    count: [10, 10, 10, 10, 10],
    nan: [0, 0, 10, 0, 0],
    posinf: none,
    neginf: none,
    missing: none,
  });
  assert.deepEqual(envelopeOf(track, []).y, [3, 3, 1, 1, null, 4, 4, 2, 2]);
  assert.deepEqual(lineOf(track, []).y, [2, 2, null, 3, 3]);
});

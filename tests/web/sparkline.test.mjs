// The sparkline: nothing that matters is lost in 180 pixels.

import assert from "node:assert/strict";
import { test } from "node:test";

import { pathOf, placesOf } from "../../web/sparkline.js";
import { emptyTrack } from "../../web/track.js";

const x = (step) => step / 10;

function bucket(step, fields) {
  const empty = { min: 1, max: 1, last: 1, count: 10, nan: 0, posinf: 0, neginf: 0, missing: 0 };
  return { step, lastStep: step + 9, ...empty, ...fields };
}

function trackOf(...buckets) {
  const track = emptyTrack();
  for (const one of buckets) for (const key of Object.keys(track)) track[key].push(one[key]);
  return track;
}

test("a spike inside a bucket reaches the top of the sparkline", () => {
  const path = pathOf(trackOf(bucket(0, {}), bucket(10, { max: 9 }), bucket(20, {})), x);
  assert.deepEqual(path.match(/[\d.]+ 3\.0/g), ["1.9 3.0"]);
  assert.ok(path.endsWith("26.0"));
});

test("the line breaks where a bucket ends in what is no number", () => {
  const path = pathOf(trackOf(bucket(0, {}), bucket(10, { nan: 1, last: NaN }), bucket(20, { max: 2 })), x);
  assert.equal(path.match(/M/g).length, 2);
});

test("every stretch of NaN has its mark, and none covers another", () => {
  const bad = [0, 10, 500, 900].map((step) => bucket(step, { nan: 1 }));
  assert.deepEqual(placesOf(trackOf(...bad, bucket(990, {})), "nan", x), [5, 50, 90]);
  assert.deepEqual(placesOf(trackOf(...bad), "posinf", x), []);
});

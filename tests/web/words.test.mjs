// How texts, times and orders are told.

import assert from "node:assert/strict";
import { test } from "node:test";

import { placesOf } from "../../web/environment.js";
import { codePieces, duration } from "../../web/format.js";
import { averageSpeed } from "../../web/header.js";

test("code in backticks is a piece of its own, and a lone backtick stays", () => {
  assert.deepEqual(codePieces("use `a()` or `b`"), ["use ", "a()", " or ", "b", ""]);
  assert.deepEqual(codePieces("no code"), ["no code"]);
  assert.deepEqual(codePieces("`a` and 5`"), ["", "a", " and 5`"]);
  assert.deepEqual(codePieces("5`"), ["5`"]);
});

test("a duration has two units at most", () => {
  assert.deepEqual([0, 59.6, 61, 3600, 7500, 90_061].map(duration), [
    "0 s",
    "1 min",
    "1 min 1 s",
    "1 h",
    "2 h 5 min",
    "1 d 1 h",
  ]);
});

test("layers that went bad in one step have no order, and a tie shares its place", () => {
  const layers = (...steps) => steps.map((step) => ({ name: "a", step, count: 1, normBefore: 1 }));
  assert.deepEqual(placesOf(layers(5, 5, 5)), [null, null, null]);
  assert.deepEqual(placesOf(layers(5, 5, 7, null)), [1, 1, 3, null]);
});

test("the average speed leaves out the pauses between sessions and the other ranks", () => {
  const session = (rank, resumeStep, lastStep, startedAt, lastSeenAt) => ({
    rank,
    resumeStep,
    lastStep,
    startedAt,
    lastSeenAt,
  });
  const sessions = [session(0, null, 99, 0, 10), session(0, 50, 149, 1000, 1010), session(1, null, 99, 0, 1)];
  assert.equal(averageSpeed({ sessions }), 10);
  assert.equal(averageSpeed({ sessions: [] }), null);
});

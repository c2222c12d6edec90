// The replay of a failing step, as it is read and told.

import assert from "node:assert/strict";
import { test } from "node:test";

import { InvalidMessage } from "../../web/codec.js";
import {
  formOf,
  maybeFirstBad,
  placeOf,
  rangeOf,
  samplesOf,
  sentenceOf,
  titleOf,
} from "../../web/firstbad.js";

const MASK = {
  step: 437,
  found: "operation",
  operation: "AddV2",
  direction: "forward",
  layer: "encoder/attention",
  file: "C:\\work\\model.py",
  line: 42,
  function: "call",
  code: "logits += mask",
  inputs: [
    { name: "0", dtype: "float16", shape: [32, 8, 8], min: -356, max: 258 },
    { name: "1", dtype: "float16", shape: [32, 1, 8], min: -65504, max: 0 },
  ],
  output: { name: "output", dtype: "float16", shape: [32, 8, 8], min: -356, max: 258, n_neginf: 12 },
  n_bad: 12,
  samples: [3, 17],
  n_bad_samples: 2,
  batch_size: 32,
};

/** @param {object} changes */
const report = (changes = {}) => {
  const read = maybeFirstBad({ ...MASK, ...changes });
  assert.ok(read);
  return read;
};

test("an operation is told with its layer and the way it was on", () => {
  assert.equal(titleOf(report()), "First bad operation");
  assert.equal(sentenceOf(report()), "`AddV2` in `encoder/attention`, on the way forward.");
  const back = { operation: "SqrtGrad", gradient_of: "Sqrt", direction: "backward", layer: "" };
  assert.equal(sentenceOf(report(back)), "`SqrtGrad`, on the way back through `Sqrt`.");
});

test("the line is that of the user, without the folders", () => {
  assert.equal(placeOf(report()), "model.py:42 in call");
  assert.equal(placeOf(report({ file: "/home/me/train.py", function: "" })), "train.py:42");
  assert.equal(placeOf(report({ file: "" })), "");
});

test("ranges are of finite numbers; what was not told is not invented", () => {
  const { inputs, output } = report();
  assert.equal(rangeOf(inputs[1]), "[−65,504, 0]");
  assert.equal(output?.neginf, 12);
  const [hidden] = report({ inputs: [{ name: "0", dtype: "float32" }] }).inputs;
  assert.equal(rangeOf(hidden), "–");
  assert.equal(formOf(hidden), "float32");
  assert.equal(formOf(inputs[0]), "float16 [32, 8, 8]");
});

test("samples are listed up to a few, and all of them counted", () => {
  assert.equal(samplesOf(report()), "Samples 3, 17 of 32 (counted from 0)");
  assert.equal(samplesOf(report({ samples: [5], n_bad_samples: 1 })), "Sample 5 of 32 (counted from 0)");
  const many = { samples: [...Array(32).keys()], n_bad_samples: 64, batch_size: 64 };
  assert.equal(samplesOf(report(many)), "Samples 0, 1, 2, 3, 4, 5, 6, 7 and 56 more of 64 (counted from 0)");
  assert.equal(samplesOf(report({ samples: [] })), "");
});

test("a bad batch, bad weights and a replay that stayed finite have words of their own", () => {
  const input = report({ found: "input", feature: 3, n_bad: 2 });
  assert.equal(titleOf(input), "Bad input");
  assert.equal(sentenceOf(input), "2 elements of the batch cannot be used, all of them in feature 3.");
  const weight = report({ found: "weight", layer: "dense/kernel", weights_bad_since: 1200 });
  assert.equal(sentenceOf(weight), "`dense/kernel` was not finite before the step began, since step 1,200.");
  assert.equal(sentenceOf(report({ found: "nothing" })), "Run again by itself, the step stayed finite.");
  assert.equal(titleOf(report({ found: "news" })), "Replay of the failing step");
});

test("weights that came bad have no step, and a replay that went another way names no cause", () => {
  const weight = report({ found: "weight", layer: "dense/kernel", weights_bad_since: -1 });
  assert.match(sentenceOf(weight), /before the step began, from the first step that was seen\.$/);
  assert.match(sentenceOf(report({ found: "nothing", met: "loss" })), /went another way: no cause is named/);
});

test("no report is none, and a field of another kind is refused", () => {
  assert.equal(maybeFirstBad(null), null);
  assert.throws(() => maybeFirstBad({ ...MASK, layer: 7 }), InvalidMessage);
});

// The reasons of an incident.

import assert from "node:assert/strict";
import { test } from "node:test";

import { linked } from "../../web/evidence.js";

test("a reason that names its step is linked there, and does not say it twice", () => {
  const link = { a: "link" };
  assert.deepEqual(linked("it was 2 at step 43, as usual", 43, link), ["it was 2 at ", link, ", as usual"]);
  assert.deepEqual(linked("it was 2 at step 436", 43, link), ["it was 2 at step 436", " ", link]);
  assert.deepEqual(linked("the loss is NaN", 43, link), ["the loss is NaN", " ", link]);
});

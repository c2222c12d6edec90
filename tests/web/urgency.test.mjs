// The order of the board.

import assert from "node:assert/strict";
import { test } from "node:test";

import { isCalm, urgency, worstFirst } from "../../web/urgency.js";

const run = (runId, state, startedAt, severity = null, incident = "open") => ({
  runId,
  state,
  startedAt,
  worst: severity && { severity, state: incident },
});

test("what runs into trouble comes first, then what runs, then what has ended, each the worst and newest first", () => {
  const runs = [
    run("ended well", "finished", 9),
    run("old failure", "failed", 1, "critical"),
    run("new failure", "finished", 8, "critical"),
    run("ended with a warning", "finished", 7, "warning"),
    run("young", "running", 5),
    run("noted", "running", 6, "info"),
    run("burning", "running", 2, "critical"),
    run("stuck", "stalled", 3, "warning"),
    run("recovered", "running", 4, "critical", "resolved"),
  ];
  assert.deepEqual(
    runs.toSorted(worstFirst).map((item) => item.runId),
    [
      "burning",
      "stuck",
      "noted",
      "young",
      "recovered",
      "new failure",
      "old failure",
      "ended with a warning",
      "ended well",
    ],
  );
});

test("a note is no incident that the board would tell of", () => {
  assert.deepEqual(
    [run("a", "running", 1, "info"), run("b", "running", 1), run("c", "running", 1, "warning")].map(isCalm),
    [true, true, false],
  );
  assert.equal(urgency(run("a", "running", 1, "info")), 2);
});

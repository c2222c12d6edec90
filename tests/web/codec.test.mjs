// Both codecs read one fixture: what Python wrote must arrive here cell by cell.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { InvalidMessage, maybeColumn, maybeNumber, mustColumn } from "../../web/codec.js";
import { mustIncident, mustLiveMessage, mustRun, mustSeriesAnswer } from "../../web/records.js";

const fixture = JSON.parse(readFileSync(new URL("../fixtures/live_v1.json", import.meta.url), "utf8"));

/** The cells of a column, as the texts of the fixture. */
function cells({ values, present }) {
  return values.map((value, i) => (present && !present[i] ? "missing" : spell(value)));
}

function spell(value) {
  return Object.is(value, -0) ? "-0" : String(value);
}

function asNumbers(texts) {
  return texts.map((text) => (text === "missing" ? text : spell(Number(text))));
}

test("every row of the fixture arrives as the value that was sent", () => {
  const frames = fixture.frames.filter(({ frame }) => frame.t === "rows");
  assert.ok(frames.length >= 3);
  for (const { frame, expected } of frames) {
    const message = mustLiveMessage(frame);
    assert.deepEqual(message.steps.map(String), expected.steps);
    for (const [name, texts] of Object.entries(expected.columns)) {
      assert.deepEqual(cells(message.columns[name]), asNumbers(texts), name);
    }
  }
});

test("NaN, both infinities and missing are four different things", () => {
  const { frame } = fixture.frames.find(({ frame }) => frame.t === "rows");
  const found = cells(mustLiveMessage(frame).columns.loss);
  assert.deepEqual(found, ["0.1", "NaN", "Infinity", "-Infinity", "missing"]);
});

test("every series answer of the fixture arrives cell by cell, raw, in buckets and by layer", () => {
  const fields = {
    step: "step",
    last_step: "lastStep",
    n_nan: "nan",
    n_posinf: "posinf",
    n_neginf: "neginf",
  };
  const kinds = new Set();
  for (const { frame, expected } of fixture.answers) {
    const answer = mustSeriesAnswer(frame);
    for (const [name, columns] of Object.entries(expected.series)) {
      kinds.add(answer.series[name].kind);
      for (const [field, texts] of Object.entries(columns)) {
        const found = answer.series[name][fields[field] ?? field];
        if (found)
          assert.deepEqual(Array.isArray(found) ? found.map(spell) : cells(found), asNumbers(texts), field);
      }
    }
  }
  assert.deepEqual([...kinds].sort(), ["buckets", "layers", "raw"]);
});

test("an incident keeps the non-finite numbers of its evidence", () => {
  const { frame, expected } = fixture.frames.find(({ frame }) => frame.t === "incident");
  const incident = mustLiveMessage(frame).incident;
  assert.deepEqual(
    incident.evidence.map((item) => spell(item.value)),
    expected.evidence,
  );
  assert.equal(incident.causes[0].supports[0], "Log in the graph");
  assert.deepEqual(incident.weights, { usable: true, badSince: null, lastCheckpointStep: 9 });
});

test("a run brings its sparkline and its worst incident", () => {
  const { frame } = fixture.frames.find(({ frame }) => frame.t === "run");
  const run = mustRun(frame.run);
  assert.equal(run.name, "lr 3e-4 <b>&");
  assert.equal(run.worst.severity, "critical");
  assert.deepEqual(run.sparkline.nan, [0, 2, 12]);
});

test("a gap of the client says what was lost and why", () => {
  assert.deepEqual(mustSeriesAnswer(fixture.answers[0].frame).gaps, [
    { firstStep: 15, lastStep: 19, reason: "ring_overflow" },
  ]);
});

test("a message that a later server invents is let through as unknown", () => {
  assert.deepEqual(mustLiveMessage({ t: "weather", sunny: true }), { t: "unknown" });
});

test("the names of the non-finite numbers are numbers, other texts are not", () => {
  assert.ok(Number.isNaN(maybeNumber("NaN", "x")));
  assert.equal(maybeNumber("-Infinity", "x"), -Infinity);
  assert.equal(maybeNumber("Infinity", "x"), Infinity);
  assert.equal(maybeNumber(null, "x"), null);
  assert.throws(() => maybeNumber("1e3", "grad_norm"), { name: "InvalidMessage", message: /grad_norm/ });
});

test("a wrong column is refused by its name", () => {
  const cases = [
    [{ dtype: "f2", bdata: "" }, /loss\.dtype/],
    [{ dtype: "f8", bdata: "AAAA" }, /loss\.bdata/],
    [{ dtype: "f8", bdata: "not base64!" }, /loss\.bdata/],
    [{ dtype: "u1", bdata: "AAAA", mask: "AAAA" }, /loss\.mask/],
    [[1, 2], /loss/],
  ];
  for (const [column, message] of cases) assert.throws(() => maybeColumn(column, "loss"), { message });
  assert.throws(() => mustColumn(undefined, "loss"), InvalidMessage);
});

test("an incident of an unknown severity is refused", () => {
  assert.throws(
    () => mustIncident({ id: "i", kind: "k", severity: "loud", onset_step: 1, detected_step: 1 }),
    {
      message: /severity.*loud/,
    },
  );
});

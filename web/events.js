// Events: what happened once - validations and ends of epochs - as tracks and steps that a chart can show. Pure.

import { mustNumber, mustObject, maybeList, maybeNumber } from "./codec.js";
import { appended, emptyTrack } from "./track.js";

/** @typedef {import("./track.js").Track} Track */
/** @typedef {{step: number, epoch: number | null, metrics: Record<string, number>}} RunEvent */

/** Of a run's validations this one stands beside the loss; the others have charts of their own. */
export const VALIDATION_LOSS = "val_loss";

/** @param {unknown} answer @returns {RunEvent[]} */
export function mustEvents(answer) {
  return maybeList(mustObject(answer, "answer").events, "events").map(mustEvent);
}

/** @param {unknown} value @returns {RunEvent} */
function mustEvent(value) {
  const event = mustObject(value, "event");
  const { epoch, ...data } = mustObject(event.data, "event.data");
  /** @type {Record<string, number>} */
  const metrics = {};
  for (const [name, item] of Object.entries(data)) {
    const number = isNumber(item) ? maybeNumber(item, name) : null;
    if (number !== null) metrics[name] = number;
  }
  return {
    step: mustNumber(event.step, "event.step"),
    epoch: isNumber(epoch) ? Number(epoch) : null,
    metrics,
  };
}

/** A reporter may send anything along. @param {unknown} value @returns {boolean} */
function isNumber(value) {
  return typeof value === "number" || value === "NaN" || value === "Infinity" || value === "-Infinity";
}

/** @param {RunEvent[]} events of validations @returns {Record<string, Track>} by the name of the metric */
export function tracksOfEvents(events) {
  /** @type {Record<string, Track>} */
  const tracks = {};
  for (const name of new Set(events.flatMap((event) => Object.keys(event.metrics)))) {
    const told = events.filter((event) => name in event.metrics);
    const column = { values: told.map((event) => event.metrics[name]), present: null };
    const steps = told.map((event) => event.step);
    tracks[name] = appended(emptyTrack(), steps, column);
  }
  return tracks;
}

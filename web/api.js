// The REST interface: addresses relative to this module, so that any path prefix works.

import { mustIncident, mustRun, mustRunDetail, mustSeriesAnswer } from "./records.js";
import { mustEvents } from "./events.js";
import { maybeList, maybeNumber, maybeObject, maybeText, mustObject } from "./codec.js";

/** @typedef {import("./state.js").Range} Range */

const ROOT = new URL("../", import.meta.url);

/** A refusal of the server, in its own words. */
export class ApiError extends Error {
  /** @param {number} status @param {string} message */
  constructor(status, message) {
    super(message);
    this.name = "ApiError";
    this.status = status;
  }
}

/** @returns {string} where a reporter sends to */
export function serverAddress() {
  return ROOT.href.replace(/\/$/, "");
}

/** @returns {URL} */
export function liveAddress() {
  const address = new URL("api/v1/live", ROOT);
  address.protocol = address.protocol === "https:" ? "wss:" : "ws:";
  return address;
}

/** @param {string} runId */
function runPath(runId) {
  return `api/v1/runs/${encodeURIComponent(runId)}`;
}

/** @param {string} runId @returns {string} */
export function exportAddress(runId) {
  return new URL(`${runPath(runId)}/export.csv`, ROOT).href;
}

/** @param {string} path @param {RequestInit} [options] @returns {Promise<unknown>} */
async function request(path, options) {
  const response = await fetch(new URL(path, ROOT), { credentials: "same-origin", ...options });
  const body = /** @type {unknown} */ (await response.json().catch(() => null));
  if (response.ok) return body;
  const error = maybeObject(maybeObject(body, "answer")?.error, "error");
  throw new ApiError(response.status, maybeText(error?.message, "message") ?? `HTTP ${response.status}`);
}

/** @returns {Promise<{runs: import("./records.js").Run[], total: number}>} the newest runs, and how many there are */
export async function getRuns() {
  const answer = mustObject(await request("api/v1/runs"), "answer");
  const runs = maybeList(answer.runs, "runs").map(mustRun);
  return { runs, total: maybeNumber(answer.total, "total") ?? runs.length };
}

/** @param {string} runId */
export async function getRun(runId) {
  return mustRunDetail(await request(runPath(runId)));
}

/** @param {string} runId */
export async function getIncidents(runId) {
  const answer = mustObject(await request(`${runPath(runId)}/incidents`), "answer");
  return maybeList(answer.incidents, "incidents").map(mustIncident);
}

/** @param {string} runId @param {"validation" | "epoch"} kind @param {number} rank */
export async function getEvents(runId, kind, rank) {
  const query = new URLSearchParams({ kind, rank: String(rank) });
  return mustEvents(await request(`${runPath(runId)}/events?${query}`));
}

/**
 * @param {string} runId
 * @param {{names: string[], pixels: number, rank?: number, range?: Range | null, session?: string}} query
 */
export async function getSeries(runId, { names, pixels, rank = 0, range = null, session }) {
  const query = new URLSearchParams({ names: names.join(","), pixels: String(pixels), rank: String(rank) });
  if (session !== undefined) query.set("session", session);
  if (range) {
    query.set("from", String(range.from));
    query.set("to", String(range.to));
  }
  return mustSeriesAnswer(await request(`${runPath(runId)}/series?${query}`));
}

/** @param {string} runId */
export async function stopRun(runId) {
  await request(`${runPath(runId)}/stop`, { method: "POST" });
}

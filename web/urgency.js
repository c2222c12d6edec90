// Urgency: the order of the board. What can still be saved stands above what is over. Pure.

/** @typedef {import("./records.js").Run} Run */

/** By urgency. */
export const ORDER = ["critical", "warning", "none"];
const ALIVE = ["running", "stalled"];

/** @param {Run} run @returns {boolean} whether its worst incident is no more than a note */
export function isCalm(run) {
  return run.worst === null || run.worst.severity === "info" || run.worst.state === "withdrawn";
}

/** @param {Run} run @returns {number} its place in ORDER */
export function urgency(run) {
  const isOpen = !isCalm(run) && run.worst?.state === "open";
  return ORDER.indexOf(isOpen ? (run.worst?.severity ?? "none") : "none");
}

/** @param {Run} run @returns {number} */
function group(run) {
  if (!ALIVE.includes(run.state)) return 2;
  return urgency(run) < 2 ? 0 : 1;
}

/**
 * What runs into trouble, what runs, what has ended; in each the worst first, then the newest.
 * @param {Run} a @param {Run} b @returns {number}
 */
export function worstFirst(a, b) {
  return group(a) - group(b) || urgency(a) - urgency(b) || (b.startedAt ?? 0) - (a.startedAt ?? 0);
}

// How numbers, times and words are written. Pure.

/** @param {number | null} value @returns {string} a measured value: the four kinds of "not a number" by name */
export function number(value) {
  if (value === null) return "–";
  if (Number.isNaN(value)) return "NaN";
  if (value === Infinity) return "+Inf";
  if (value === -Infinity) return "−Inf";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return value.toExponential(2).replace("-", "−").replace("e+", "e");
  return value
    .toLocaleString("en", { maximumSignificantDigits: 5, useGrouping: size >= 1e4 })
    .replace("-", "−");
}

/** @param {number | null} value @returns {string} a step or a count */
export function whole(value) {
  return value === null ? "–" : value.toLocaleString("en");
}

/** @param {number | null} rate @returns {string} */
export function speed(rate) {
  if (rate === null || !Number.isFinite(rate)) return "–";
  return rate >= 100 ? whole(Math.round(rate)) : rate.toPrecision(rate >= 1 ? 3 : 2);
}

/** @param {number} count @param {string} noun @returns {string} */
export function counted(count, noun) {
  return `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/** @param {number | null} unixSeconds @param {number} nowMs @returns {string} */
export function ago(unixSeconds, nowMs) {
  if (unixSeconds === null) return "";
  const seconds = Math.max(0, nowMs / 1000 - unixSeconds);
  if (seconds < 60) return "just now";
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h ago`;
  return `${counted(Math.floor(seconds / 86_400), "day")} ago`;
}

/** @param {number | null} unixSeconds @returns {string} date and time where the reader is */
export function clock(unixSeconds) {
  if (unixSeconds === null) return "";
  const date = new Date(unixSeconds * 1000);
  return date.toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
}

/** @param {number} seconds @returns {string} such as 2 h 5 min */
export function duration(seconds) {
  const total = Math.max(0, Math.round(seconds));
  const counts = [total / 86_400, (total / 3600) % 24, (total / 60) % 60, total % 60].map(Math.floor);
  const first = counts.findIndex((count) => count > 0);
  if (first < 0) return "0 s";
  const parts = counts.map((count, i) => `${count} ${["d", "h", "min", "s"][i]}`);
  return parts.slice(first, first + (counts[first + 1] ? 2 : 1)).join(" ");
}

/**
 * A text cut at its code in backticks: every second piece, beginning with the second, is code.
 * @param {string} text @returns {string[]}
 */
export function codePieces(text) {
  const pieces = text.split("`");
  return pieces.length % 2 ? pieces : [...pieces.slice(0, -2), pieces.slice(-2).join("`")];
}

const SPELLING = new Map([
  ["nan", "NaN"],
  ["nonfinite", "non-finite"],
  ["relu", "ReLU"],
  ["adam", "Adam"],
]);

// As in client_lib/trainvitals/titles.py: what the words of a kind alone do not say.
const TITLES = new Map([["optimizer_epsilon", "Optimizer epsilon too small"]]);

/** @param {string} identifier such as sudden_nan @returns {string} such as Sudden NaN */
export function words(identifier) {
  const title = TITLES.get(identifier);
  if (title) return title;
  const text = identifier
    .split("_")
    .map((word) => SPELLING.get(word) ?? word)
    .join(" ");
  return text.startsWith("float") ? text : text.charAt(0).toUpperCase() + text.slice(1);
}

/** @param {string} text @param {number} limit @returns {string} */
export function clipped(text, limit) {
  return text.length <= limit ? text : `${text.slice(0, limit - 1)}…`;
}

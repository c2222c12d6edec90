// Track: one series as the page keeps it, in columns of buckets (a raw point is a bucket of one). Pure.
// Whatever is merged, the smallest, the largest and every count of NaN, +Inf, -Inf and missing stay.

/** @typedef {import("./records.js").AnySeries} AnySeries */
/** @typedef {import("./records.js").Gap} Gap */
/** @typedef {import("./codec.js").Column} Column */
/** @typedef {"nan" | "posinf" | "neginf" | "missing"} MarkKind */

/**
 * `min`, `max` and `last` are NaN in a bucket without a finite value. `above` and `aboveMost` are how many values
 * were above 0, at least and at most: a bucket of the server does not say.
 * @typedef {{step: number[], lastStep: number[], min: number[], max: number[], last: number[], count: number[],
 *   nan: number[], posinf: number[], neginf: number[], missing: number[], above: number[],
 *   aboveMost: number[]}} Track
 */
/** @typedef {{step: number, lastStep: number, count: number}} Mark */
/** @typedef {Record<MarkKind, number>} Totals */
/** @typedef {{least: number, most: number, rows: number}} Share */

/** An envelope has two points a bucket, and a trace has at most 2,000 points. */
export const MAX_BUCKETS = 900;

/** @type {MarkKind[]} */
export const MARK_KINDS = ["nan", "posinf", "neginf", "missing"];

const COUNTS = /** @type {const} */ (["count", "nan", "posinf", "neginf", "missing", "above", "aboveMost"]);

/** @returns {Track} */
export function emptyTrack() {
  return {
    step: [],
    lastStep: [],
    min: [],
    max: [],
    last: [],
    count: [],
    nan: [],
    posinf: [],
    neginf: [],
    missing: [],
    above: [],
    aboveMost: [],
  };
}

/** @param {Track} track @returns {Track} */
function copyTrack(track) {
  return /** @type {Track} */ (
    Object.fromEntries(Object.entries(track).map(([key, list]) => [key, [...list]]))
  );
}

/** @param {AnySeries} series @returns {Track} */
export function trackOf(series) {
  if (series.kind === "layers") return emptyTrack();
  if (series.kind === "raw") return appended(emptyTrack(), series.step, series.value);
  const finite = (/** @type {Column} */ column) =>
    column.values.map((value, i) => (Number.isFinite(value) && (column.present?.[i] ?? 1) ? value : NaN));
  const { step, lastStep, count, nan, posinf, neginf, missing } = series;
  const [min, max, last] = [finite(series.min), finite(series.max), finite(series.last)];
  const above = count.map((_, i) => aboveOf(i, false));
  const aboveMost = count.map((_, i) => aboveOf(i, true));
  return compacted({ step, lastStep, min, max, last, count, nan, posinf, neginf, missing, above, aboveMost });

  /** @param {number} i @param {boolean} isMost @returns {number} */
  function aboveOf(i, isMost) {
    const finite = count[i] - nan[i] - posinf[i] - neginf[i] - missing[i];
    if (!(max[i] > 0)) return 0;
    if (min[i] > 0) return finite;
    return isMost ? finite - 1 : 1;
  }
}

/**
 * The track with rows added behind its end; rows it already has are left out.
 * @param {Track} track @param {number[]} steps @param {Column} column @returns {Track}
 */
export function appended(track, steps, column) {
  const next = copyTrack(track);
  let end = next.lastStep.at(-1) ?? -Infinity;
  for (let i = 0; i < steps.length; i++) {
    if (steps[i] <= end) continue;
    end = steps[i];
    pushPoint(next, steps[i], column.values[i], column.present === null || column.present[i] === 1);
  }
  return compacted(next);
}

/** @param {Track} track @param {number} step @param {number} value @param {boolean} isPresent */
function pushPoint(track, step, value, isPresent) {
  const finite = isPresent && Number.isFinite(value) ? value : NaN;
  track.step.push(step);
  track.lastStep.push(step);
  track.min.push(finite);
  track.max.push(finite);
  track.last.push(finite);
  track.count.push(1);
  track.nan.push(isPresent && Number.isNaN(value) ? 1 : 0);
  track.posinf.push(isPresent && value === Infinity ? 1 : 0);
  track.neginf.push(isPresent && value === -Infinity ? 1 : 0);
  track.missing.push(isPresent ? 0 : 1);
  track.above.push(finite > 0 ? 1 : 0);
  track.aboveMost.push(finite > 0 ? 1 : 0);
}

/**
 * The track in at most `buckets` buckets of even width.
 * @param {Track} track @param {number} [buckets] @returns {Track}
 */
export function compacted(track, buckets = MAX_BUCKETS) {
  if (track.step.length <= buckets) return track;
  const first = track.step[0];
  const width = Math.ceil((2 * (lastStepOf(track) - first + 1)) / buckets);
  const out = emptyTrack();
  let key = -1;
  for (let i = 0; i < track.step.length; i++) {
    const bucket = Math.floor((track.step[i] - first) / width);
    if (bucket === key) mergeInto(out, out.step.length - 1, track, i);
    else for (const field of fieldsOf(track)) out[field].push(track[field][i]);
    key = bucket;
  }
  return out;
}

/** @param {Track} track @returns {(keyof Track)[]} */
function fieldsOf(track) {
  return /** @type {(keyof Track)[]} */ (Object.keys(track));
}

/** @param {Track} out @param {number} at @param {Track} track @param {number} i */
function mergeInto(out, at, track, i) {
  out.lastStep[at] = track.lastStep[i];
  out.min[at] = smaller(out.min[at], track.min[i]);
  out.max[at] = -smaller(-out.max[at], -track.max[i]);
  if (!Number.isNaN(track.last[i])) out.last[at] = track.last[i];
  for (const field of COUNTS) {
    out[field][at] += track[field][i];
  }
}

/** @param {number} a @param {number} b @returns {number} the smaller one; NaN stands for "none" */
function smaller(a, b) {
  if (Number.isNaN(a)) return b;
  return Number.isNaN(b) ? a : Math.min(a, b);
}

/** @param {Track | undefined} track @returns {number} */
export function lastStepOf(track) {
  return track?.lastStep.at(-1) ?? -1;
}

/** @param {Track} track @returns {number} the last finite value, or NaN */
export function lastValueOf(track) {
  return track.last.findLast((value) => !Number.isNaN(value)) ?? NaN;
}

/**
 * Smallest and largest finite value, or null where there is none.
 * @param {Track} track @param {Track | null} [other] drawn beside it @returns {[number, number] | null}
 */
export function extentOf(track, other = null) {
  const low = [...track.min, ...(other?.min ?? [])].reduce(smaller, NaN);
  const high = [...track.max, ...(other?.max ?? [])].map((value) => -value).reduce(smaller, NaN);
  return Number.isNaN(low) ? null : [low, -high];
}

/**
 * The line: one point a bucket, `null` where it breaks.
 * @param {Track} track @param {Gap[]} gaps
 * @returns {{x: number[], y: (number | null)[]}}
 */
export function lineOf(track, gaps) {
  /** @type {number[]} */
  const x = [];
  /** @type {(number | null)[]} */
  const y = [];
  track.step.forEach((step, i) => {
    if (i && isCut(track.lastStep[i - 1], step, gaps)) {
      x.push(step);
      y.push(null);
    }
    x.push(track.lastStep[i]);
    y.push(Number.isNaN(track.last[i]) ? null : track.last[i]);
  });
  return { x, y };
}

/** @param {number} before @param {number} after @param {Gap[]} gaps */
function isCut(before, after, gaps) {
  return after > before + 1 && gaps.some((gap) => gap.firstStep < after && gap.lastStep > before);
}

/**
 * The envelope: closed outlines around min and max, `null` between stretches; empty where all points are raw.
 * @param {Track} track @param {Gap[]} gaps @returns {{x: (number | null)[], y: (number | null)[]}}
 */
export function envelopeOf(track, gaps) {
  /** @type {{x: (number | null)[], y: (number | null)[]}} */
  const outline = { x: [], y: [] };
  if (track.count.every((count) => count <= 1)) return outline;
  let start = 0;
  for (let i = 0; i <= track.step.length; i++) {
    const ends = i === track.step.length || Number.isNaN(track.min[i]);
    const cut = !ends && i > start && isCut(track.lastStep[i - 1], track.step[i], gaps);
    if (!ends && !cut) continue;
    outlineStretch(track, start, i, outline);
    start = ends ? i + 1 : i;
  }
  return outline;
}

/** @param {Track} track @param {number} start @param {number} stop @param {{x: (number|null)[], y: (number|null)[]}} outline */
function outlineStretch(track, start, stop, outline) {
  if (stop - start < 2) return;
  if (outline.x.length) {
    outline.x.push(null);
    outline.y.push(null);
  }
  for (let i = start; i < stop; i++) {
    outline.x.push(track.lastStep[i]);
    outline.y.push(track.max[i]);
  }
  for (let i = stop - 1; i >= start; i--) {
    outline.x.push(track.lastStep[i]);
    outline.y.push(track.min[i]);
  }
}

/**
 * Where the values of one kind are, within the range.
 * @param {Track} track @param {MarkKind} kind @param {number} from @param {number} to @returns {Mark[]}
 */
export function marksOf(track, kind, from, to) {
  return track[kind].flatMap((count, i) =>
    count > 0 && track.lastStep[i] >= from && track.step[i] <= to
      ? [{ step: track.step[i], lastStep: track.lastStep[i], count }]
      : [],
  );
}

/** @param {Track} track @param {number} [from] @param {number} [to] @returns {Totals} */
export function totalsOf(track, from = -Infinity, to = Infinity) {
  const sum = (/** @type {MarkKind} */ kind) =>
    marksOf(track, kind, from, to).reduce((total, mark) => total + mark.count, 0);
  return { nan: sum("nan"), posinf: sum("posinf"), neginf: sum("neginf"), missing: sum("missing") };
}

/**
 * The values that are there, for a series that is measured now and then: between two of them nothing is missing.
 * @param {Track} track @returns {Track}
 */
export function sampled(track) {
  const kept = track.step.map((_, i) => i).filter((i) => track.count[i] > track.missing[i]);
  const out = emptyTrack();
  for (const field of fieldsOf(track)) out[field] = kept.map((i) => track[field][i]);
  out.count = kept.map((i) => track.count[i] - track.missing[i]);
  out.missing = kept.map(() => 0);
  return out;
}

/**
 * In how many rows of the range the value was above 0.
 * @param {Track} track @param {number} [from] @param {number} [to] @returns {Share}
 */
export function shareAbove(track, from = -Infinity, to = Infinity) {
  const share = { least: 0, most: 0, rows: 0 };
  track.step.forEach((step, i) => {
    if (track.lastStep[i] < from || step > to) return;
    share.least += track.above[i];
    share.most += track.aboveMost[i];
    share.rows += track.count[i] - track.missing[i];
  });
  return share;
}

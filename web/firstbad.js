// First bad: what the replay of a failing step found, checked field by field and put into words. Pure.

import { maybeList, maybeNumber, maybeObject, maybeText, maybeTexts, mustObject } from "./codec.js";
import { counted, number, whole } from "./format.js";

/**
 * `min` and `max` are those of the finite elements, null where there are none or they were not told.
 * @typedef {{name: string, dtype: string, shape: number[], min: number | null, max: number | null, nan: number,
 *   posinf: number, neginf: number}} Operand
 */
/**
 * @typedef {{step: number | null, found: string, met: string, operation: string, gradientOf: string, direction: string,
 *   layer: string, file: string, line: number, function: string, code: string, inputs: Operand[],
 *   output: Operand | null, bad: number, feature: number | null, samples: number[], badSamples: number,
 *   batchSize: number, weightsBadSince: number | null, bundle: string, notes: string[]}} FirstBad
 */

const FEW = 8; // samples that are listed
/** @type {Record<string, string>} */
const TITLES = {
  operation: "First bad operation",
  input: "Bad input",
  label: "Bad label",
  sample_weight: "Bad sample weight",
  weight: "Weights bad before the step",
  nothing: "Replayed without finding it",
};

/** @param {unknown} value @returns {FirstBad | null} */
export function maybeFirstBad(value) {
  const report = maybeObject(value, "first_bad_operation");
  if (report === null) return null;
  const text = (/** @type {string} */ name) => maybeText(report[name], `first_bad_operation.${name}`) ?? "";
  const count = (/** @type {string} */ name) => maybeNumber(report[name], `first_bad_operation.${name}`);
  return {
    step: count("step"),
    found: text("found"),
    met: text("met"),
    operation: text("operation"),
    gradientOf: text("gradient_of"),
    direction: text("direction"),
    layer: text("layer"),
    file: text("file"),
    line: count("line") ?? 0,
    function: text("function"),
    code: text("code"),
    inputs: maybeList(report.inputs, "first_bad_operation.inputs").map(mustOperand),
    output: report.output ? mustOperand(report.output) : null,
    bad: count("n_bad") ?? 0,
    feature: count("feature"),
    samples: numbers(report.samples),
    badSamples: count("n_bad_samples") ?? 0,
    batchSize: count("batch_size") ?? 0,
    weightsBadSince: count("weights_bad_since"),
    bundle: text("bundle"),
    notes: maybeTexts(report.notes, "first_bad_operation.notes"),
  };
}

/** @param {unknown} value @returns {Operand} */
function mustOperand(value) {
  const operand = mustObject(value, "operand");
  return {
    name: maybeText(operand.name, "operand.name") ?? "",
    dtype: maybeText(operand.dtype, "operand.dtype") ?? "",
    shape: numbers(operand.shape),
    min: maybeNumber(operand.min, "operand.min"),
    max: maybeNumber(operand.max, "operand.max"),
    nan: maybeNumber(operand.n_nan, "operand.n_nan") ?? 0,
    posinf: maybeNumber(operand.n_posinf, "operand.n_posinf") ?? 0,
    neginf: maybeNumber(operand.n_neginf, "operand.n_neginf") ?? 0,
  };
}

/** @param {unknown} value @returns {number[]} */
function numbers(value) {
  return maybeList(value, "numbers").map((item) => maybeNumber(item, "number") ?? 0);
}

/** @param {FirstBad} report @returns {string} */
export function titleOf({ found }) {
  return TITLES[found] ?? "Replay of the failing step";
}

/** What was found, in a sentence; code in backticks. @param {FirstBad} report @returns {string} */
export function sentenceOf(report) {
  const layer = report.layer ? ` in \`${report.layer}\`` : "";
  if (report.found === "operation") return `\`${report.operation}\`${layer}, ${way(report)}.`;
  if (report.found === "weight") {
    return `\`${report.layer || "a weight"}\` was not finite before the step began${since(report.weightsBadSince)}.`;
  }
  if (report.met) return "Run again by itself, the step went another way: no cause is named.";
  if (report.found === "nothing") return "Run again by itself, the step stayed finite.";
  const feature = report.feature === null ? "" : `, all of them in feature ${report.feature}`;
  return `${counted(report.bad, "element")} of the batch cannot be used${feature}.`;
}

/** Below 0: no update was seen before. @param {number | null} step */
function since(step) {
  if (step === null) return "";
  return step < 0 ? ", from the first step that was seen" : `, since step ${whole(step)}`;
}

/** @param {FirstBad} report */
function way({ direction, gradientOf }) {
  if (direction === "backward")
    return gradientOf ? `on the way back through \`${gradientOf}\`` : "on the way back";
  return direction === "update" ? "in the optimizer's update" : "on the way forward";
}

/** The user's own line, "model.py:42 in call". @param {FirstBad} report @returns {string} "" where not told */
export function placeOf(report) {
  if (!report.file) return "";
  const name = report.file.replaceAll("\\", "/").split("/").at(-1) ?? "";
  return `${name}:${report.line}${report.function ? ` in ${report.function}` : ""}`;
}

/** Which samples suffice to make it happen. @param {FirstBad} report @returns {string} "" where not known */
export function samplesOf({ samples, badSamples, batchSize }) {
  if (!samples.length) return "";
  const listed = samples.slice(0, FEW).join(", ");
  const count = Math.max(badSamples, samples.length);
  const rest = count > FEW ? ` and ${whole(count - FEW)} more` : "";
  const all = batchSize ? ` of ${whole(batchSize)}` : "";
  return `${count === 1 ? "Sample" : "Samples"} ${listed}${rest}${all} (counted from 0)`;
}

/** The finite range, "[−356, 258]"; a single value alone. @param {Operand} operand @returns {string} */
export function rangeOf({ min, max }) {
  if (min === null || max === null) return "–";
  return min === max ? number(min) : `[${number(min)}, ${number(max)}]`;
}

/** @param {Operand} operand @returns {string} such as "float16 [32, 10]" */
export function formOf({ dtype, shape }) {
  return shape.length ? `${dtype} [${shape.join(", ")}]` : dtype;
}

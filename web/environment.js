// What the run is made of: precision, optimizer, versions; and its layers, the first bad ones on top.

import { ellipsis, h } from "./dom.js";
import { clipped, number, whole, words } from "./format.js";

/** @typedef {import("./records.js").RunDetail} RunDetail */
/** @typedef {import("./records.js").Layer} Layer */
/** @typedef {import("./badlayers.js").BadLayer} BadLayer */
/** @typedef {import("./codec.js").Json} Json */

const MAX_LAYERS = 400;
const MAX_KEY = 100;
const NUMERIC = new Set(["Parameters", "First at step", "Non-finite", "Norm before"]);
const PLAIN = /** @type {const} */ ([
  ["dtype_policy", "Precision policy"],
  ["loss_scaling", "Loss scaling"],
  ["optimizer", "Optimizer"],
  ["loss", "Loss"],
  ["batch_size", "Batch size"],
  ["epochs", "Epochs"],
  ["steps_per_epoch", "Steps per epoch"],
  ["jit_compile", "XLA (jit_compile)"],
  ["steps_per_execution", "Steps per execution"],
  ["run_eagerly", "Eager"],
  ["strategy", "Strategy"],
  ["device", "Device"],
  ["host", "Host"],
  ["program", "Program"],
]);
const GROUPS = /** @type {const} */ ([
  ["optimizer_config", "Optimizer settings"],
  ["versions", "Versions"],
  ["config", "Configuration"],
]);

/** @param {RunDetail} run @returns {HTMLElement[]} */
export function environmentView(run) {
  const environment = run.environment;
  const plain = PLAIN.map(([key, name]) => row(name, environment[key] ?? undefined)).filter(
    (item) => item !== null,
  );
  const groups = GROUPS.map(([key, name]) => group(name, environment[key]));
  const known = [...groups, operations(environment.operations)].filter((item) => item !== null);
  if (!plain.length && !known.length) return [];
  return [h("h2", {}, "Environment"), h("dl", { class: "pairs" }, ...plain), ...known];
}

/** @param {string} name @param {unknown} value @returns {HTMLElement | null} */
function row(name, value) {
  if (value === undefined || value === "") return null;
  return h("div", {}, h("dt", {}, clipped(name, MAX_KEY)), h("dd", {}, ellipsis(scalar(value))));
}

/** @param {unknown} value @returns {string} */
function scalar(value) {
  if (value === null) return "none";
  if (value === true) return "yes";
  if (value === false) return "no";
  return typeof value === "number" ? number(value) : String(value);
}

/** @param {string} title @param {unknown} value @returns {HTMLElement | null} */
function group(title, value) {
  if (typeof value !== "object" || value === null || !Object.keys(value).length) return null;
  const rows = Object.entries(value).map(([name, item]) => row(name, item));
  return h("section", {}, h("h3", {}, title), h("dl", { class: "pairs mono" }, ...rows));
}

/** @param {unknown} value @returns {HTMLElement | null} */
function operations(value) {
  if (typeof value !== "object" || value === null || !Object.keys(value).length) return null;
  const rows = Object.entries(value).map(([kind, names]) =>
    row(words(kind), Array.isArray(names) ? names.join(", ") : ""),
  );
  return h(
    "section",
    {},
    h("h3", {}, "Operations that can overflow"),
    h("dl", { class: "pairs mono" }, ...rows),
  );
}

/** @param {RunDetail} run @returns {HTMLElement[]} */
export function layersView(run) {
  if (!run.layers.length) return [];
  const rows = run.layers.slice(0, MAX_LAYERS).map((layer, i) => layerRow(layer, i + 1));
  const rest = run.layers.length - rows.length;
  return [
    h("h2", {}, `Layers`),
    table(["", "Layer", "Kind", "Parameters", "Variables", "Computes in"], rows),
    ...(rest > 0 ? [h("p", { class: "muted small" }, `and ${whole(rest)} more`)] : []),
  ];
}

/** @param {Layer} layer @param {number} position */
function layerRow({ name, kind, parameters, dtype, computeDtype, trainable }, position) {
  return h(
    "tr",
    { "data-layer": name.slice(0, 200) },
    h("td", { class: "muted number" }, String(position)),
    h("td", { class: "layer-name" }, ellipsis(name)),
    h("td", { class: "muted" }, ellipsis(kind)),
    h("td", { class: "number" }, whole(parameters)),
    h("td", {}, dtype + (trainable ? "" : " · frozen")),
    h("td", { class: computeDtype.includes("16") ? "half" : "" }, computeDtype || dtype),
  );
}

/** @param {string[]} heads @param {HTMLElement[]} rows */
function table(heads, rows) {
  const head = h(
    "tr",
    {},
    ...heads.map((text) => h("th", { scope: "col", class: NUMERIC.has(text) && "number" }, text)),
  );
  return h(
    "div",
    { class: "scroll" },
    h("table", { class: "layers" }, h("thead", {}, head), h("tbody", {}, ...rows)),
  );
}

/**
 * The place of each layer in the order of first bad steps: those of one step share it, and none says a step apart.
 * @param {BadLayer[]} bad @returns {(number | null)[]} null for all where there is no order
 */
export function placesOf(bad) {
  const steps = bad.map((layer) => layer.step);
  const isOne = new Set(steps).size === 1;
  return steps.map((step) =>
    isOne || step === null ? null : 1 + steps.filter((other) => other !== null && other < step).length,
  );
}

/** @param {BadLayer[]} bad @returns {string} */
function orderText(bad) {
  const [first] = bad;
  if (bad.length > 1 && first.step !== null && placesOf(bad).every((place) => place === null))
    return `All in the same step, ${whole(first.step)}: which was first cannot be told from the gradients.`;
  return "In the order in which their gradients became non-finite.";
}

/**
 * The layers that went bad, in the order in which they did.
 * @param {RunDetail} run @param {BadLayer[]} bad @returns {HTMLElement[]}
 */
export function firstBadView(run, bad) {
  if (!bad.length) return [];
  const places = placesOf(bad);
  const rows = bad.slice(0, MAX_LAYERS).map((item, i) =>
    badRow(
      run.layers.find((layer) => layer.name === item.name),
      item,
      places[i],
    ),
  );
  return [
    h("h2", {}, "First bad layers"),
    h("p", { class: "muted small" }, orderText(bad)),
    table(["", "Layer", "Computes in", "First at step", "Non-finite", "Norm before"], rows),
  ];
}

/** @param {Layer | undefined} layer @param {BadLayer} bad @param {number | null} place */
function badRow(layer, { name, step, count, normBefore }, place) {
  const compute = layer?.computeDtype || layer?.dtype || "";
  const share = count !== null && layer?.parameters ? ` of ${whole(layer.parameters)}` : "";
  return h(
    "tr",
    { "data-layer": name.slice(0, 200) },
    h("td", { class: "muted number" }, place === null ? "" : String(place)),
    h("td", { class: "layer-name" }, ellipsis(name)),
    h("td", { class: compute.includes("16") ? "half" : "" }, compute),
    h("td", { class: "number" }, whole(step)),
    h("td", { class: "number" }, count === null ? "–" : whole(count) + share),
    h("td", { class: "number" }, number(normBefore)),
  );
}

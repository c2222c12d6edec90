// The replay of the failing step: the operation, the user's line, its numbers and the samples that did it.

import { codeBlock, h, prose } from "./dom.js";
import { formOf, placeOf, rangeOf, samplesOf, sentenceOf, titleOf } from "./firstbad.js";
import { clipped, whole } from "./format.js";

/** @typedef {import("./firstbad.js").FirstBad} FirstBad */
/** @typedef {import("./firstbad.js").Operand} Operand */

const MAX_TEXT = 500;

/** @param {FirstBad | null} report */
export function autopsy(report) {
  if (!report) return null;
  const place = placeOf(report);
  const samples = samplesOf(report);
  return h(
    "section",
    { class: "autopsy", "data-testid": "autopsy", "data-found": report.found },
    h("h3", {}, titleOf(report)),
    h("p", {}, ...prose(clipped(sentenceOf(report), MAX_TEXT))),
    place ? h("p", { class: "place" }, h("code", { title: report.file }, clipped(place, MAX_TEXT))) : null,
    report.code ? h("pre", { tabindex: 0 }, h("code", {}, clipped(report.code, MAX_TEXT))) : null,
    operands(report),
    samples ? h("p", {}, samples) : null,
    ...report.notes.map((note) => h("p", { class: "muted" }, ...prose(clipped(note, MAX_TEXT)))),
    report.bundle
      ? codeBlock(
          `trainvitals replay ${report.bundle}`,
          "Copy the command that replays the step",
          "copy replay",
        )
      : null,
  );
}

/** @param {FirstBad} report */
function operands({ inputs, output, found }) {
  const names = inputs.map((input) => (found === "operation" ? `input ${input.name}` : input.name));
  const rows = inputs.map((input, i) => row(names[i], input));
  if (output) rows.push(row("output", output));
  if (!rows.length) return null;
  const heads = ["", "Finite range", "NaN", "+Inf", "−Inf", "Type"];
  const head = h("tr", {}, ...heads.map((text) => h("th", { scope: "col" }, text)));
  const label = "The numbers that went in and came out";
  return h(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": label },
    h("table", {}, h("thead", {}, head), h("tbody", {}, ...rows)),
  );
}

/** @param {string} name @param {Operand} operand */
function row(name, operand) {
  const counts = [operand.nan, operand.posinf, operand.neginf];
  return h(
    "tr",
    {},
    h("th", { scope: "row" }, clipped(name, MAX_TEXT)),
    h("td", { class: "number" }, rangeOf(operand)),
    ...counts.map((count) => h("td", { class: "number", "data-bad": count > 0 }, whole(count))),
    h("td", {}, formOf(operand)),
  );
}

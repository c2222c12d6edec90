// Why an incident is one: its reasons with the steps where a chart shows them, and what else was seen.

import { h, prose } from "./dom.js";
import { clipped, number, whole } from "./format.js";

/** @typedef {import("./records.js").Incident} Incident */
/** @typedef {import("./state.js").Action} Action */
/** @typedef {(action: Action) => void} Dispatch */

export const MAX_TEXT = 2000;
const AROUND = 60; // steps shown on both sides of one
const FEW = 4; // rows; a run that limps for hours adds more and more, and the charts are below

/** The reasons, each with the step where a chart shows it. @param {Incident} incident @param {Dispatch} dispatch */
export function why({ why: reasons, evidence: items }, dispatch) {
  const rows = reasons.map((reason, i) => {
    const step = items.find((item) => item.text === reason)?.step ?? null;
    const parts = linked(clipped(reason, MAX_TEXT), step, stepLink(step, `why ${i}`, dispatch));
    return h("li", {}, ...parts.flatMap((part) => (typeof part === "string" ? prose(part) : [part])));
  });
  return h("ul", {}, ...rows);
}

/**
 * The text with its link: in place of the words "step 7" where it says them, else behind it.
 * @template T @param {string} text @param {number | null} step @param {T} link @returns {(string | T)[]}
 */
export function linked(text, step, link) {
  const found = step === null ? null : new RegExp(`\\bstep ${step}\\b`).exec(text);
  if (!found) return [text, " ", link];
  return [text.slice(0, found.index), link, text.slice(found.index + found[0].length)];
}

/** @param {number | null} step @param {string} key @param {Dispatch} dispatch */
function stepLink(step, key, dispatch) {
  if (step === null) return null;
  const click = () => dispatch({ type: "zoom", range: { from: step - AROUND, to: step + AROUND } });
  return h("button", { type: "button", class: "step-link", "data-key": key, click }, `step ${whole(step)}`);
}

/** What the reasons have not said yet; of much, the first. @param {Incident} incident @param {Dispatch} dispatch */
export function evidence({ why: reasons, evidence: items }, dispatch) {
  const rows = items
    .filter((item) => !reasons.includes(item.text))
    .map((item, i) =>
      h(
        "tr",
        {},
        h("td", {}, stepLink(item.step, `evidence ${i}`, dispatch)),
        h("td", {}, ...prose(clipped(item.text, MAX_TEXT))),
        h("td", { class: "number" }, item.value === null ? "" : number(item.value)),
      ),
    );
  if (!rows.length) return null;
  const rest = rows.length > FEW + 1 ? rows.splice(FEW) : [];
  return h(
    "div",
    { class: "evidence" },
    h("h3", {}, "Evidence"),
    table(rows),
    rest.length
      ? h(
          "details",
          { "data-key": "more evidence" },
          h("summary", {}, `${whole(rest.length)} more`),
          table(rest),
        )
      : null,
  );
}

/** @param {HTMLElement[]} rows */
function table(rows) {
  return h("table", {}, h("tbody", {}, ...rows));
}

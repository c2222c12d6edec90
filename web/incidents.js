// Incidents: the one that matters told in full - verdict, why, next - and the others to choose from.

import { autopsy } from "./autopsy.js";
import { codeBlock, ellipsis, h, prose } from "./dom.js";
import { evidence, MAX_TEXT, why } from "./evidence.js";
import { clipped, counted, whole, words } from "./format.js";
import { ranked, shownIncident } from "./state.js";

/** @typedef {import("./records.js").Incident} Incident */
/** @typedef {import("./records.js").Cause} Cause */
/** @typedef {import("./state.js").State} State */
/** @typedef {import("./state.js").Action} Action */
/** @typedef {(action: Action) => void} Dispatch */

const LIKELY = 0.5;
const CERTAIN = 0.85;
const AROUND = 60; // steps shown before the onset and after the end
const SEVERITY_WORDS = { critical: "Critical", warning: "Warning", info: "Note" };

/** @param {State} state @param {Dispatch} dispatch @returns {HTMLElement[]} */
export function incidentView(state, dispatch) {
  const shown = shownIncident(state);
  if (!shown) return state.isLoaded ? [calm(state)] : [];
  const others = ranked(state.incidents);
  return [
    ...(others.length > 1 ? [chooser(others, shown, dispatch)] : []),
    shown.severity === "info" && shown.id !== state.incidentId
      ? note(shown, dispatch)
      : card(shown, dispatch),
  ];
}

/** @param {State} state */
function calm(state) {
  const text = state.run?.state === "running" ? "No incident so far" : "No incident";
  return h(
    "p",
    { class: "calm", "data-testid": "no-incident" },
    h("i", { class: "dot", "aria-hidden": "true" }),
    text,
  );
}

/** @param {Incident[]} incidents @param {Incident} shown @param {Dispatch} dispatch */
function chooser(incidents, shown, dispatch) {
  const items = incidents.map((incident) =>
    h(
      "button",
      {
        type: "button",
        class: "pick",
        "data-severity": incident.severity,
        "data-key": `pick ${incident.id}`,
        "aria-pressed": String(incident.id === shown.id),
        click: () => dispatch({ type: "select", incidentId: incident.id }),
      },
      h("b", {}, words(incident.kind)),
      h(
        "span",
        { class: "muted" },
        incident.state === "open" ? `step ${whole(incident.onsetStep)}` : incident.state,
      ),
    ),
  );
  return h("nav", { class: "picks", "aria-label": "Incidents" }, ...items);
}

/** A note needs one line, not a card. @param {Incident} incident @param {Dispatch} dispatch */
function note(incident, dispatch) {
  const open = {
    type: "button",
    class: "quiet",
    "data-key": `note ${incident.id}`,
    click: () => dispatch({ type: "select", incidentId: incident.id }),
  };
  return h(
    "article",
    { class: "note", "data-incident": incident.id, "data-severity": "info" },
    h("b", { class: "severity", "data-severity": "info" }, words(incident.kind)),
    h("span", { class: "verdict-line" }, ...prose(clipped(incident.verdict, MAX_TEXT))),
    h("button", open, "Details"),
  );
}

/** @param {Incident} incident @param {Dispatch} dispatch */
function card(incident, dispatch) {
  const [first, ...rest] = incident.causes;
  return h(
    "article",
    { class: "incident", "data-incident": incident.id, "data-severity": incident.severity },
    heading(incident, dispatch),
    h("p", { class: "verdict" }, ...prose(clipped(incident.verdict, MAX_TEXT))),
    facts(incident),
    autopsy(incident.firstBadOperation),
    h(
      "div",
      { class: "columns" },
      h("section", {}, h("h3", {}, "Why"), why(incident, dispatch), evidence(incident, dispatch)),
      h(
        "section",
        {},
        h("h3", {}, "Next"),
        list("ol", incident.next),
        first ? cause(first, "first", [...incident.why, ...incident.next]) : null,
      ),
    ),
    rest.length ? otherCauses(rest) : null,
  );
}

/** @param {Incident} incident @param {Dispatch} dispatch */
function heading(incident, dispatch) {
  const zoom = {
    type: "button",
    class: "quiet",
    "data-key": "zoom",
    click: () => dispatch(zoomTo(incident)),
  };
  return h(
    "header",
    {},
    h("b", { class: "badge", "data-severity": incident.severity }, SEVERITY_WORDS[incident.severity]),
    h("h2", {}, words(incident.kind)),
    incident.state === "open" ? null : h("span", { class: "muted" }, incident.state),
    incident.late ? h("span", { class: "muted" }, "uploaded late") : null,
    h("span", { class: "spring" }),
    h("button", zoom, "Show on the charts"),
  );
}

/** @param {Incident} incident @returns {Action} */
function zoomTo(incident) {
  const end = Math.max(incident.nonfiniteStep ?? incident.detectedStep, incident.detectedStep);
  const margin = Math.max(AROUND, Math.round((end - incident.onsetStep) / 4));
  return { type: "zoom", range: { from: incident.onsetStep - margin, to: end + margin } };
}

/** @param {Incident} incident */
function facts(incident) {
  const rows = [
    ["Began at step", whole(incident.onsetStep)],
    ["Detected at", whole(incident.detectedStep)],
    ["First non-finite", incident.nonfiniteStep === null ? null : whole(incident.nonfiniteStep)],
    ["Warned", incident.leadSteps ? `${counted(incident.leadSteps, "step")} ahead` : null],
    ["Layer", incident.layer],
    ["Rank", incident.rank ? whole(incident.rank) : null],
  ];
  const known = rows
    .filter(([, value]) => value !== null)
    .map(([name, value]) => fact(name ?? "", value ?? ""));
  return h("dl", { class: "facts" }, ...known, weights(incident.weights));
}

/** @param {string} name @param {string} value @param {string} [tone] */
function fact(name, value, tone) {
  return h("div", { "data-tone": tone }, h("dt", {}, name), h("dd", {}, ellipsis(value)));
}

/** @param {Incident["weights"]} weights */
function weights({ usable, badSince, lastCheckpointStep }) {
  const saved = lastCheckpointStep === null ? "" : `, last checkpoint at step ${whole(lastCheckpointStep)}`;
  if (usable === null) return fact("Weights", `not known${saved}`);
  if (usable) return fact("Weights", `usable${saved}`, "good");
  return fact(
    "Weights",
    `unusable${badSince === null ? "" : ` since step ${whole(badSince)}`}${saved}`,
    "bad",
  );
}

/** @param {"ul" | "ol"} tag @param {string[]} items */
function list(tag, items) {
  return h(tag, {}, ...items.map((item) => h("li", {}, ...prose(clipped(item, MAX_TEXT)))));
}

/**
 * What was said above is not said again.
 * @param {Cause} item @param {string} key @param {string[]} [said]
 */
function cause(item, key, said = []) {
  return h(
    "div",
    { class: "cause", "data-cause": item.cause },
    h("p", { class: "cause-name" }, h("b", {}, words(item.cause)), confidence(item.confidence)),
    item.fix && !said.includes(item.fix) ? h("p", {}, ...prose(clipped(item.fix, MAX_TEXT))) : null,
    item.snippet ? codeBlock(item.snippet, `Copy the fix for ${words(item.cause)}`, `copy ${key}`) : null,
    reasons(
      "For",
      item.supports.filter((text) => !said.includes(text)),
    ),
    reasons("Against", item.against),
  );
}

/** @param {number} value */
function confidence(value) {
  const word = value >= CERTAIN ? "very likely" : value >= LIKELY ? "likely" : "possible";
  const share = Math.max(0, Math.min(1, value));
  const bar = h("meter", { min: 0, max: 1, value: share, "aria-label": "confidence" });
  return h("span", { class: "confidence muted" }, bar, `${word} · ${share.toFixed(2)}`);
}

/** @param {string} title @param {string[]} items */
function reasons(title, items) {
  return items.length ? h("div", { class: "reasons" }, h("h4", {}, title), list("ul", items)) : null;
}

/** @param {Cause[]} causes */
function otherCauses(causes) {
  const items = causes.map((item, i) => cause(item, String(i)));
  return h(
    "details",
    { class: "more", "data-key": "other explanations" },
    h("summary", {}, `${counted(causes.length, "other explanation")}`),
    ...items,
  );
}

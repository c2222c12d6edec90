// The boundary, second half: the records of the REST interface and the live socket, checked field by field.

import {
  InvalidMessage,
  maybeColumn,
  maybeFlag,
  maybeList,
  maybeNumber,
  maybeObject,
  maybeText,
  maybeTexts,
  mustColumn,
  mustNumber,
  mustObject,
  mustText,
} from "./codec.js";
import { maybeFirstBad } from "./firstbad.js";

/** @typedef {import("./codec.js").Column} Column */
/** @typedef {import("./codec.js").Json} Json */
/** @typedef {"critical" | "warning" | "info"} Severity */

/**
 * @typedef {{kind: string, severity: Severity, state: string, verdict: string, onsetStep: number | null}}
 *   WorstIncident
 */
/**
 * @typedef {{runId: string, project: string, group: string | null, name: string, state: string,
 *   lastStep: number | null, stepsPerSecond: number | null, startedAt: number | null, lastSeenAt: number | null,
 *   tags: string[], worst: WorstIncident | null, isStopRequested: boolean,
 *   sparkline: AnySeries | null}} Run
 */
/**
 * @typedef {{name: string, kind: string, parameters: number, dtype: string, computeDtype: string,
 *   trainable: boolean}} Layer
 */
/**
 * @typedef {{rank: number, sessionId: string, ordinal: number, status: string | null, resumeStep: number | null,
 *   lastStep: number | null, startedAt: number | null, lastSeenAt: number | null}} Session
 */
/** @typedef {Run & {environment: Json, layers: Layer[], sessions: Session[], series: string[], layerSeries: string[]}} RunDetail */
/**
 * @typedef {{cause: string, confidence: number, supports: string[], against: string[], fix: string,
 *   snippet: string}} Cause
 */
/**
 * @typedef {{text: string, series: string | null, step: number | null, value: number | null,
 *   layer: string | null}} Evidence
 */
/**
 * @typedef {{id: string, kind: string, severity: Severity, state: string, onsetStep: number, detectedStep: number,
 *   nonfiniteStep: number | null, leadSteps: number | null, layer: string | null, rank: number, verdict: string,
 *   why: string[], next: string[], causes: Cause[], evidence: Evidence[], firstBadLayers: string[],
 *   firstBadOperation: import("./firstbad.js").FirstBad | null, late: boolean, revision: number,
 *   weights: {usable: boolean | null, badSince: number | null, lastCheckpointStep: number | null}}} Incident
 */
/** @typedef {{firstStep: number, lastStep: number, reason: string}} Gap */
/** @typedef {{kind: "raw", step: number[], value: Column}} RawSeries */
/**
 * @typedef {{kind: "buckets", step: number[], lastStep: number[], min: Column, max: Column, last: Column,
 *   count: number[], nan: number[], posinf: number[], neginf: number[], missing: number[]}} BucketSeries
 */
/** @typedef {{kind: "layers", layers: string[], step: number[], lastStep: number[], value: Column}} LayerSeries */
/** @typedef {RawSeries | BucketSeries | LayerSeries} AnySeries */
/** What a later session took another way from. @typedef {{sessionId: string, firstStep: number, lastStep: number}} Ghost */
/**
 * @typedef {{rank: number, series: Record<string, AnySeries>, gaps: Gap[], ghosts: Ghost[],
 *   cursor: number | null}} SeriesAnswer
 */
/**
 * @typedef {{t: "rows", runId: string, rank: number, cursor: number, steps: number[], columns: Record<string, Column>}
 *   | {t: "incident", runId: string, incident: Incident}
 *   | {t: "run", run: Run}
 *   | {t: "gone", runId: string}
 *   | {t: "resync", runId: string | null}
 *   | {t: "hello"}
 *   | {t: "unknown"}} LiveMessage
 */

/** @param {unknown} value @returns {Run} */
export function mustRun(value) {
  const run = mustObject(value, "run");
  const runId = mustText(run.run_id, "run.run_id");
  return {
    runId,
    project: maybeText(run.project, "run.project") ?? "",
    name: maybeText(run.name, "run.name") || runId,
    state: maybeText(run.state, "run.state") ?? "running",
    lastStep: maybeNumber(run.last_step, "run.last_step"),
    stepsPerSecond: maybeNumber(run.steps_per_s, "run.steps_per_s"),
    startedAt: maybeNumber(run.started_at ?? run.created_at, "run.started_at"),
    lastSeenAt: maybeNumber(run.last_seen_at, "run.last_seen_at"),
    group: maybeText(run.group, "run.group"),
    tags: maybeTexts(run.tags, "run.tags"),
    worst: maybeWorst(run.worst_incident),
    isStopRequested: maybeFlag(run.stop_requested, "run.stop_requested") ?? false,
    sparkline: run.sparkline ? mustSeries(mustObject(run.sparkline, "sparkline"), "sparkline") : null,
  };
}

/** @param {unknown} value @returns {WorstIncident | null} */
function maybeWorst(value) {
  const worst = maybeObject(value, "run.worst_incident");
  if (worst === null) return null;
  return {
    kind: mustText(worst.kind, "worst_incident.kind"),
    severity: mustSeverity(worst.severity),
    state: maybeText(worst.state, "worst_incident.state") ?? "open",
    verdict: maybeText(worst.verdict, "worst_incident.verdict") ?? "",
    onsetStep: maybeNumber(worst.onset_step, "worst_incident.onset_step"),
  };
}

/** @param {unknown} value @returns {Severity} */
function mustSeverity(value) {
  if (value === "critical" || value === "warning" || value === "info") return value;
  throw new InvalidMessage("severity", value);
}

/** @param {unknown} value @returns {RunDetail} */
export function mustRunDetail(value) {
  const run = mustObject(value, "run");
  return {
    ...mustRun(run),
    environment: maybeObject(run.environment, "run.environment") ?? {},
    layers: maybeList(run.layers, "run.layers").map(mustLayer),
    sessions: maybeList(run.sessions, "run.sessions").map(mustSession),
    series: maybeTexts(run.series, "run.series"),
    layerSeries: maybeTexts(run.layer_series, "run.layer_series"),
  };
}

/** @param {unknown} value @returns {Layer} */
function mustLayer(value) {
  const layer = mustObject(value, "layer");
  return {
    name: mustText(layer.name, "layer.name"),
    kind: maybeText(layer.kind, "layer.kind") ?? "",
    parameters: maybeNumber(layer.parameters, "layer.parameters") ?? 0,
    dtype: maybeText(layer.dtype, "layer.dtype") ?? "",
    computeDtype: maybeText(layer.compute_dtype, "layer.compute_dtype") ?? "",
    trainable: maybeFlag(layer.trainable, "layer.trainable") ?? true,
  };
}

/** @param {unknown} value @returns {Session} */
function mustSession(value) {
  const session = mustObject(value, "session");
  return {
    rank: maybeNumber(session.rank, "session.rank") ?? 0,
    sessionId: maybeText(session.session_id, "session.session_id") ?? "",
    ordinal: maybeNumber(session.ordinal, "session.ordinal") ?? 0,
    status: maybeText(session.status, "session.status"),
    resumeStep: maybeNumber(session.resume_step, "session.resume_step"),
    lastStep: maybeNumber(session.last_step, "session.last_step"),
    startedAt: maybeNumber(session.started_at, "session.started_at"),
    lastSeenAt: maybeNumber(session.last_seen_at, "session.last_seen_at"),
  };
}

/** @param {unknown} value @returns {Incident} */
export function mustIncident(value) {
  const incident = mustObject(value, "incident");
  const weights = maybeObject(incident.weights, "incident.weights") ?? {};
  return {
    id: mustText(incident.id, "incident.id"),
    kind: mustText(incident.kind, "incident.kind"),
    severity: mustSeverity(incident.severity),
    state: maybeText(incident.state, "incident.state") ?? "open",
    onsetStep: mustNumber(incident.onset_step, "incident.onset_step"),
    detectedStep: mustNumber(incident.detected_step, "incident.detected_step"),
    nonfiniteStep: maybeNumber(incident.nonfinite_step, "incident.nonfinite_step"),
    leadSteps: maybeNumber(incident.lead_steps, "incident.lead_steps"),
    layer: maybeText(incident.layer, "incident.layer"),
    rank: maybeNumber(incident.rank, "incident.rank") ?? 0,
    verdict: maybeText(incident.verdict, "incident.verdict") ?? "",
    why: maybeTexts(incident.why, "incident.why"),
    next: maybeTexts(incident.next, "incident.next"),
    causes: maybeList(incident.causes, "incident.causes").map(mustCause),
    evidence: maybeList(incident.evidence, "incident.evidence").map(mustEvidence),
    firstBadLayers: maybeTexts(incident.first_bad_layers, "incident.first_bad_layers"),
    firstBadOperation: maybeFirstBad(incident.first_bad_operation),
    late: maybeFlag(incident.late, "incident.late") ?? false,
    revision: maybeNumber(incident.revision, "incident.revision") ?? 1,
    weights: {
      usable: maybeFlag(weights.usable, "weights.usable"),
      badSince: maybeNumber(weights.bad_since, "weights.bad_since"),
      lastCheckpointStep: maybeNumber(weights.last_checkpoint_step, "weights.last_checkpoint_step"),
    },
  };
}

/** @param {unknown} value @returns {Cause} */
function mustCause(value) {
  const cause = mustObject(value, "cause");
  return {
    cause: mustText(cause.cause, "cause.cause"),
    confidence: maybeNumber(cause.confidence, "cause.confidence") ?? 0,
    supports: maybeTexts(cause.for, "cause.for"),
    against: maybeTexts(cause.against, "cause.against"),
    fix: maybeText(cause.fix, "cause.fix") ?? "",
    snippet: maybeText(cause.snippet, "cause.snippet") ?? "",
  };
}

/** @param {unknown} value @returns {Evidence} */
function mustEvidence(value) {
  const evidence = mustObject(value, "evidence");
  return {
    text: mustText(evidence.text, "evidence.text"),
    series: maybeText(evidence.series, "evidence.series"),
    step: maybeNumber(evidence.step, "evidence.step"),
    value: maybeNumber(evidence.value, "evidence.value"),
    layer: maybeText(evidence.layer, "evidence.layer"),
  };
}

/** @param {unknown} value @returns {SeriesAnswer} */
export function mustSeriesAnswer(value) {
  const answer = mustObject(value, "answer");
  /** @type {Record<string, AnySeries>} */
  const series = {};
  for (const [name, item] of Object.entries(mustObject(answer.series, "answer.series"))) {
    series[name] = mustSeries(mustObject(item, name), name);
  }
  return {
    rank: maybeNumber(answer.rank, "answer.rank") ?? 0,
    series,
    gaps: maybeList(answer.gaps, "answer.gaps").flatMap(maybeGap),
    ghosts: maybeList(answer.sessions, "answer.sessions").flatMap(maybeGhost),
    cursor: maybeNumber(answer.cursor, "answer.cursor"),
  };
}

/** @param {Json} item @param {string} name @returns {AnySeries} */
function mustSeries(item, name) {
  const step = mustColumn(item.step, `${name}.step`).values;
  if (item.layers) {
    const layers = maybeTexts(item.layers, `${name}.layers`);
    const lastStep = maybeColumn(item.last_step, `${name}.last_step`)?.values ?? step;
    return { kind: "layers", layers, step, lastStep, value: mustColumn(item.value, `${name}.value`) };
  }
  if (item.value) return { kind: "raw", step, value: mustColumn(item.value, `${name}.value`) };
  const counted = (/** @type {string} */ field) =>
    maybeColumn(item[field], `${name}.${field}`)?.values ?? step.map(() => 0);
  return {
    kind: "buckets",
    step,
    lastStep: maybeColumn(item.last_step, `${name}.last_step`)?.values ?? step,
    min: mustColumn(item.min, `${name}.min`),
    max: mustColumn(item.max, `${name}.max`),
    last: mustColumn(item.last, `${name}.last`),
    count: counted("count"),
    nan: counted("n_nan"),
    posinf: counted("n_posinf"),
    neginf: counted("n_neginf"),
    missing: counted("n_missing"),
  };
}

/** @param {unknown} value @returns {Gap[]} */
function maybeGap(value) {
  const gap = mustObject(value, "gap");
  const firstStep = maybeNumber(gap.first_step, "gap.first_step");
  if (firstStep === null) return []; // frames without rows were lost: nothing to shade
  const lastStep = maybeNumber(gap.last_step, "gap.last_step") ?? firstStep;
  return [{ firstStep, lastStep, reason: maybeText(gap.reason, "gap.reason") ?? "lost" }];
}

/** @param {unknown} value @returns {Ghost[]} */
function maybeGhost(value) {
  const branch = mustObject(value, "session");
  const ghost = maybeObject(branch.ghost, "session.ghost");
  if (ghost === null) return [];
  return [
    {
      sessionId: mustText(branch.session_id, "session.session_id"),
      firstStep: mustNumber(ghost.first_step, "ghost.first_step"),
      lastStep: mustNumber(ghost.last_step, "ghost.last_step"),
    },
  ];
}

/** @param {unknown} value @returns {LiveMessage} */
export function mustLiveMessage(value) {
  const message = mustObject(value, "message");
  switch (message.t) {
    case "rows":
      return mustRows(message);
    case "incident":
      return {
        t: "incident",
        runId: mustText(message.run_id, "run_id"),
        incident: mustIncident(message.incident),
      };
    case "run":
      return { t: "run", run: mustRun(message.run) };
    case "gone":
      return { t: "gone", runId: mustText(message.run_id, "run_id") };
    case "resync":
      return { t: "resync", runId: maybeText(message.run_id, "run_id") };
    case "hello":
      return { t: "hello" };
    default:
      return { t: "unknown" }; // a later server may say more
  }
}

/** @param {Json} message @returns {LiveMessage} */
function mustRows(message) {
  /** @type {Record<string, Column>} */
  const columns = {};
  for (const [name, column] of Object.entries(maybeObject(message.columns, "columns") ?? {})) {
    columns[name] = mustColumn(column, name);
  }
  return {
    t: "rows",
    runId: mustText(message.run_id, "run_id"),
    rank: maybeNumber(message.rank, "rank") ?? 0,
    cursor: maybeNumber(message.cursor, "cursor") ?? 0,
    steps: mustColumn(message.steps, "steps").values,
    columns,
  };
}

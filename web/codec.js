// The boundary, first half: from JSON to typed columns and checked scalars.
// Every `maybeX` returns the value in its type, `null` where it is absent, and throws by name where it is wrong.

/**
 * Numbers of one series. A missing cell is `present[i] === 0`; NaN and the infinities are values.
 * @typedef {{values: number[], present: Uint8Array | null}} Column
 */

/** @typedef {Record<string, unknown>} Json */

const READERS = {
  f8: {
    bytes: 8,
    read: (/** @type {DataView} */ view, /** @type {number} */ at) => view.getFloat64(at, true),
  },
  f4: {
    bytes: 4,
    read: (/** @type {DataView} */ view, /** @type {number} */ at) => view.getFloat32(at, true),
  },
  i4: { bytes: 4, read: (/** @type {DataView} */ view, /** @type {number} */ at) => view.getInt32(at, true) },
  u1: { bytes: 1, read: (/** @type {DataView} */ view, /** @type {number} */ at) => view.getUint8(at) },
};

const SPELLED = new Map([
  ["NaN", NaN],
  ["Infinity", Infinity],
  ["-Infinity", -Infinity],
]);

/** A message that is not what the protocol says. */
export class InvalidMessage extends Error {
  /** @param {string} name @param {unknown} value */
  constructor(name, value) {
    super(`invalid ${name}: ${String(JSON.stringify(value)).slice(0, 80)}`);
    this.name = "InvalidMessage";
  }
}

/** @param {unknown} value @param {string} name @returns {Json} */
export function mustObject(value, name) {
  const object = maybeObject(value, name);
  if (object === null) throw new InvalidMessage(name, value);
  return object;
}

/** @param {unknown} value @param {string} name @returns {Json | null} */
export function maybeObject(value, name) {
  if (value === null || value === undefined) return null;
  if (typeof value !== "object" || Array.isArray(value)) throw new InvalidMessage(name, value);
  return /** @type {Json} */ (value);
}

/** @param {unknown} value @param {string} name @returns {unknown[]} */
export function maybeList(value, name) {
  if (value === null || value === undefined) return [];
  if (!Array.isArray(value)) throw new InvalidMessage(name, value);
  return value;
}

/** @param {unknown} value @param {string} name @returns {string[]} */
export function maybeTexts(value, name) {
  return maybeList(value, name).map((item) => mustText(item, name));
}

/** @param {unknown} value @param {string} name @returns {string | null} */
export function maybeText(value, name) {
  if (value === null || value === undefined) return null;
  if (typeof value !== "string") throw new InvalidMessage(name, value);
  return value;
}

/** @param {unknown} value @param {string} name @returns {string} */
export function mustText(value, name) {
  if (typeof value !== "string") throw new InvalidMessage(name, value);
  return value;
}

/**
 * A number; the non-finite ones travel as their names.
 * @param {unknown} value @param {string} name @returns {number | null}
 */
export function maybeNumber(value, name) {
  if (value === null || value === undefined) return null;
  if (typeof value === "number") return value;
  const spelled = typeof value === "string" ? SPELLED.get(value) : undefined;
  if (spelled === undefined) throw new InvalidMessage(name, value);
  return spelled;
}

/** @param {unknown} value @param {string} name @returns {number} */
export function mustNumber(value, name) {
  const number = maybeNumber(value, name);
  if (number === null) throw new InvalidMessage(name, value);
  return number;
}

/** @param {unknown} value @param {string} name @returns {boolean | null} */
export function maybeFlag(value, name) {
  if (value === null || value === undefined) return null;
  if (typeof value !== "boolean") throw new InvalidMessage(name, value);
  return value;
}

/** @param {unknown} value @param {string} name @returns {Column | null} */
export function maybeColumn(value, name) {
  const column = maybeObject(value, name);
  if (column === null) return null;
  const reader = READERS[/** @type {keyof typeof READERS} */ (column.dtype)];
  if (!reader) throw new InvalidMessage(`${name}.dtype`, column.dtype);
  const bytes = decodeBase64(column.bdata, `${name}.bdata`);
  if (bytes.length % reader.bytes) throw new InvalidMessage(`${name}.bdata`, bytes.length);
  const view = new DataView(bytes.buffer);
  const values = new Array(bytes.length / reader.bytes);
  for (let i = 0; i < values.length; i++) values[i] = reader.read(view, i * reader.bytes);
  return { values, present: maybeMask(column.mask, values.length, `${name}.mask`) };
}

/** @param {unknown} value @param {string} name @returns {Column} */
export function mustColumn(value, name) {
  const column = maybeColumn(value, name);
  if (column === null) throw new InvalidMessage(name, value);
  return column;
}

/** @param {unknown} value @param {number} cells @param {string} name @returns {Uint8Array | null} */
function maybeMask(value, cells, name) {
  if (value === null || value === undefined) return null;
  const bits = decodeBase64(value, name);
  if (bits.length !== Math.ceil(cells / 8)) throw new InvalidMessage(name, bits.length);
  return Uint8Array.from({ length: cells }, (_, i) => (bits[i >> 3] >> (i & 7)) & 1);
}

/** @param {unknown} value @param {string} name @returns {Uint8Array} */
function decodeBase64(value, name) {
  let text;
  try {
    text = atob(mustText(value, name));
  } catch {
    throw new InvalidMessage(name, value);
  }
  return Uint8Array.from(text, (character) => character.charCodeAt(0));
}

// Small leaves of the page. Text goes in as text only: no name can become markup.

import { codePieces } from "./format.js";

/** @typedef {Node | string | null | false | undefined} Child */
/** @typedef {Record<string, string | boolean | number | null | undefined | ((event: Event) => void)>} Attributes */

const SVG = "http://www.w3.org/2000/svg";
const MAX_TITLE = 1000; // a tooltip with ten thousand characters helps nobody

/**
 * An element. A function becomes a listener, `true` an empty attribute, null and false none.
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag @param {Attributes} attributes @param {...Child} children @returns {HTMLElementTagNameMap[T]}
 */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** @param {string} tag @param {Attributes} attributes @param {...Child} children @returns {SVGElement} */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** @template {Element} E @param {E} element @param {Attributes} attributes @param {Child[]} children @returns {E} */
function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value !== null && value !== undefined && value !== false)
      element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** @param {string} id @returns {HTMLElement} */
export function byId(id) {
  const element = document.getElementById(id);
  if (!element) throw new Error(`the page has no #${id}`);
  return element;
}

/**
 * Put other children into an element; the keyboard focus goes back where it was, and what was unfolded stays so.
 * @param {Element} element @param {...Child} children
 */
export function refill(element, ...children) {
  const unfolded = [...element.querySelectorAll("details[open]")].map((node) =>
    node.getAttribute("data-key"),
  );
  const focused = document.activeElement;
  const key = focused && element.contains(focused) ? focused.getAttribute("data-key") : null;
  element.replaceChildren(
    ...children.filter((child) => child !== null && child !== undefined && child !== false),
  );
  for (const node of element.querySelectorAll("details[data-key]"))
    if (unfolded.includes(node.getAttribute("data-key"))) node.setAttribute("open", "");
  if (key === null) return;
  const again = [...element.querySelectorAll("[data-key]")].find(
    (node) => node.getAttribute("data-key") === key,
  );
  if (again instanceof HTMLElement) again.focus();
}

/** A name of any length on one line, whole in its tooltip. @param {string} text @param {string} [name] */
export function ellipsis(text, name = "") {
  return h(
    "span",
    { class: `ellipsis ${name}`.trim(), title: text.slice(0, MAX_TITLE) },
    text.slice(0, MAX_TITLE),
  );
}

/** A text whose code in backticks is shown as code. @param {string} text @returns {(Node | string)[]} */
export function prose(text) {
  return codePieces(text).map((piece, i) => (i % 2 ? h("code", {}, piece) : piece));
}

/** A block of code with a button that copies it. @param {string} code @param {string} label @param {string} key */
export function codeBlock(code, label, key) {
  const button = h("button", { type: "button", class: "copy", "data-key": key, "aria-label": label }, "Copy");
  button.addEventListener("click", async () => {
    button.textContent = (await copy(code)) ? "Copied" : "Press Ctrl+C";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  return h("div", { class: "code" }, h("pre", { tabindex: 0 }, h("code", {}, code)), button);
}

/** @param {string} text @returns {Promise<boolean>} */
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text); // absent where the page is neither https nor loopback
    return true;
  } catch {
    return copyBySelection(text);
  }
}

/** @param {string} text @returns {boolean} */
function copyBySelection(text) {
  const field = h("textarea", { class: "visually-hidden", "aria-hidden": "true" });
  field.value = text;
  document.body.append(field);
  field.select();
  const isCopied = document.execCommand("copy");
  field.remove();
  return isCopied;
}

/** A state in words with its dot. @param {string} state */
export function stateMark(state) {
  return h(
    "span",
    { class: "state", "data-state": state },
    h("i", { class: "dot", "aria-hidden": "true" }),
    state,
  );
}

// The colours of the style sheet as plotly needs them: resolved for the theme that is on.

const NAMES = /** @type {const} */ ([
  "text",
  "muted",
  "line",
  "surface",
  "accent",
  "accent-tint",
  "accent-edge",
  "critical",
  "warning",
  "info",
  "missing",
  "nan",
  "posinf",
  "neginf",
  "heat-low",
  "heat-middle",
  "heat-high",
]);

/** @typedef {Record<(typeof NAMES)[number], string>} Palette */

/** @returns {Palette} */
export function palette() {
  const probe = document.createElement("i");
  probe.hidden = true;
  document.body.append(probe);
  const colors = NAMES.map((name) => {
    probe.style.color = `var(--${name})`;
    return [name, getComputedStyle(probe).color];
  });
  probe.remove();
  return /** @type {Palette} */ (Object.fromEntries(colors));
}

// The contrast of each colour of text on the grounds it stands on: relative luminance as WCAG 2.2 defines it.
() => {
  const probe = document.body.appendChild(document.createElement("i"));
  const rgb = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe)
      .color.match(/[\d.]+/g)
      .slice(0, 3)
      .map(Number);
  };
  const luminance = (name) => {
    const linear = rgb(name)
      .map((c) => c / 255)
      .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  const ratio = (a, b) => {
    const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y);
    return (high + 0.05) / (low + 0.05);
  };
  const pairs = {
    text: ["bg", "surface", "sunken"],
    muted: ["bg", "surface", "sunken"],
    accent: ["surface"],
  };
  for (const kind of ["nan", "posinf", "neginf", "missing"]) pairs[kind] = ["surface"];
  for (const tone of ["critical", "warning", "info"]) pairs[tone] = ["surface", `${tone}-tint`];
  return Object.fromEntries(
    Object.entries(pairs).flatMap(([text, grounds]) =>
      grounds.map((ground) => [`${text} on ${ground}`, ratio(text, ground)]),
    ),
  );
};

// Light or dark: follows the system until somebody chooses. A classic script, so that it runs before the first paint.
(() => {
  const KEY = "trainvitals.theme";
  const NEXT = { auto: "light", light: "dark", dark: "auto" };

  /** @returns {"auto" | "light" | "dark"} */
  const stored = () => {
    try {
      const theme = localStorage.getItem(KEY);
      return theme === "light" || theme === "dark" ? theme : "auto";
    } catch {
      return "auto"; // storage may be forbidden
    }
  };

  /** @param {"auto" | "light" | "dark"} theme */
  const apply = (theme) => {
    document.documentElement.dataset.theme = theme;
    document.dispatchEvent(new CustomEvent("themechange"));
  };

  /** @param {Element} button @param {"auto" | "light" | "dark"} theme */
  const label = (button, theme) => {
    button.textContent = `Theme: ${theme}`;
    button.setAttribute("aria-label", `Theme: ${theme}. Change to ${NEXT[theme]}`);
  };

  let theme = stored();
  apply(theme);
  addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    if (!button) return;
    label(button, theme);
    button.addEventListener("click", () => {
      theme = /** @type {"auto" | "light" | "dark"} */ (NEXT[theme]);
      try {
        localStorage.setItem(KEY, theme);
      } catch {
        // chosen for this page only
      }
      apply(theme);
      label(button, theme);
    });
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => apply(theme));
})();

// Colours: as the system, light or dark; a browser remembers the choice.

const THEMES = ["system", "light", "dark"];

/** Let a button choose the colours of the page. */
export function themes(button) {
  const turn = (steps) => {
    const at = (Math.max(0, THEMES.indexOf(localStorage.getItem("weft-theme"))) + steps) % THEMES.length;
    localStorage.setItem("weft-theme", THEMES[at]);
    document.documentElement.dataset.theme = THEMES[at];
    button.setAttribute("aria-label", `Colours: ${THEMES[at] === "system" ? "as the system" : THEMES[at]}`);
    if (steps) window.dispatchEvent(new Event("weft-theme"));
  };
  button.addEventListener("click", () => turn(1));
  turn(0);
}

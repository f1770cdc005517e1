// A colour for each model, the same as long as the page is open; neighbours differ most.

const TURN = 137.508;
const hues = new Map();

export function hue(model) {
  if (!hues.has(model)) hues.set(model, Math.round((255 + hues.size * TURN) % 360));
  return hues.get(model);
}

export function paint(element, model) {
  element.classList.add("coloured");
  element.style.setProperty("--hue", hue(model));
}

export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

export function ofCanvas(model, dark) {
  return dark ? `oklch(0.72 0.14 ${hue(model)})` : `oklch(0.62 0.16 ${hue(model)})`;
}

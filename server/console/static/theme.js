// Light or dark: as the system says, unless somebody chose. The choice is the one thing that the console keeps in a browser.
const KEY = "quarry-theme";
const THEMES = ["system", "light", "dark"];

export function theme() {
  try {
    const kept = localStorage.getItem(KEY);
    return THEMES.includes(kept) ? kept : "system";
  } catch {
    return "system"; // a browser may forbid to keep anything
  }
}

export function setTheme(name) {
  try {
    if (name === "system") localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, name);
  } catch {
    // it holds until the page is loaded again
  }
  apply(name);
}

export function nextTheme(name) {
  return THEMES[(THEMES.indexOf(name) + 1) % THEMES.length];
}

export function apply(name) {
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
}

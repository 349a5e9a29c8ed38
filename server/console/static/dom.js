// Elements made by calls. Text is only ever put in as text nodes: names, bodies and errors come from strangers.

const SVG = "http://www.w3.org/2000/svg";

// What would turn round, hide or break up the text that it stands in: control and format characters, ends of lines and
// paragraphs, halves of characters. They are shown as JSON writes them, as commands show them (cli/terminal/text.py).
const STEERING =
  /[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{110bd}\u{110cd}\u{13430}-\u{1343f}\u{1bca0}-\u{1bca3}\u{1d173}-\u{1d17a}\u{e0001}\u{e0020}-\u{e007f}\ud800-\udfff]|\r(?!\n)/gu;

// Attributes that people read, or hear.
const READ = new Set(["title", "aria-label", "data-label"]);

export function harmless(text) {
  return String(text).replace(STEERING, (found) =>
    found
      .split("")
      .map((unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`)
      .join(""),
  );
}

// h("a", {class: "x", href: "#/", onclick: f, disabled: false}, "text", node, [nodes]); null and false are left out.
export function h(tag, properties, ...children) {
  return fill(document.createElement(tag), properties, children);
}

export function svg(tag, properties, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else if (READ.has(name)) element.setAttribute(name, harmless(value));
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

export function append(element, children) {
  // What is typed over and sent again stays as it is.
  const shown = element.localName === "textarea" ? String : harmless;
  for (const child of [children].flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : shown(child));
  }
  return element;
}

// Puts `children` in place of what was there. The keyboard stays where it was, if there still is such a control, and
// what was unfolded stays unfolded.
export function replace(element, ...children) {
  const held = element.contains(document.activeElement) ? document.activeElement : null;
  const before = held ? controls(element) : [];
  const unfolded = new Set([...element.querySelectorAll("details[open][data-fold]")].map((one) => one.dataset.fold));
  element.replaceChildren();
  append(element, children);
  for (const one of element.querySelectorAll("details[data-fold]")) {
    if (unfolded.has(one.dataset.fold)) one.open = true;
  }
  if (held) {
    const now = controls(element);
    const same = now.filter((one) => signature(one) === signature(held));
    (same[0] ?? now[Math.min(before.indexOf(held), now.length - 1)])?.focus({ preventScroll: true });
  }
  return element;
}

function controls(element) {
  return [...element.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex='0']")];
}

function signature(control) {
  return `${control.tagName} ${control.getAttribute("href") ?? control.name ?? ""} ${control.getAttribute("aria-label") ?? control.textContent}`;
}

let counter = 0;

export function newId(stem) {
  counter += 1;
  return `${stem}-${counter}`;
}

const SHOWN_MS = 10000;

// A line above the page for a while: how something has ended whose place is not there any more.
export function tell(...nodes) {
  const line = h("div", { class: "toast" }, nodes);
  document.getElementById("told").append(line);
  setTimeout(() => line.remove(), SHOWN_MS);
}

// Tells who listens to the page rather than looks at it.
export function announce(text) {
  const said = document.getElementById("said");
  said.textContent = "";
  // A text that is the same as before would not be told again.
  requestAnimationFrame(() => {
    said.textContent = harmless(text);
  });
}

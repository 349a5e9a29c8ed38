// Elements made by calls. Text is only ever put in as text nodes: names, bodies and errors come from strangers.

const SVG = "http://www.w3.org/2000/svg";

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
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

export function append(element, children) {
  for (const child of [children].flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
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
    said.textContent = text;
  });
}

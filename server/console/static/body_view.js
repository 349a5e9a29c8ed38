// The body of a message as text, as JSON that folds, and as bytes.
import { bytesOf } from "./api.js";
import { h } from "./dom.js";
import { save } from "./export.js";
import { bytes, count, unknown } from "./format.js";
import { facts } from "./table.js";

const HEX_PORTION = 4096;
const CHILDREN_MAX = 500;
const PREVIEW = 120;

// The first characters of a body, in one line.
export function preview(body) {
  if (!body) return unknown("the body of the record cannot be read");
  if (body.plainSize === 0 || (!body.isCut && body.base64 === "")) return h("span", { class: "none" }, "empty");
  if (body.text === null || body.text === undefined) return h("span", { class: "none" }, "bytes that are no text");
  const line = body.text
    .slice(0, PREVIEW * 2)
    .replace(/\s+/g, " ")
    .slice(0, PREVIEW);
  return h("span", { class: "preview" }, line + (body.text.length > line.length ? " …" : ""));
}

// A number as it was written: 64 bits do not fit into what the page counts with.
class Written {
  constructor(text) {
    this.text = text;
  }
}

function parsed(text) {
  if (typeof text !== "string" || !/^\s*[[{"\d-]/.test(text)) return undefined;
  try {
    const value = JSON.parse(text, (_, one, context) =>
      typeof one === "number" && context?.source ? new Written(context.source) : one,
    );
    return typeof value === "object" && value !== null ? value : undefined;
  } catch {
    return undefined;
  }
}

// `isBrief`: without its sizes.
export function bodyView(message, { isBrief = false } = {}) {
  const body = message.body ?? {};
  const json = body.isCut ? undefined : parsed(body.text);
  const hasText = body.text !== null && body.text !== undefined;
  const views = [
    json !== undefined && ["JSON", () => h("div", { class: "tree" }, node(null, json, 0))],
    hasText && [
      "Text",
      () => h("pre", { class: "body", tabindex: "0", "aria-label": "body as text" }, body.text || "(empty)"),
    ],
    ["Hex", () => hexView(bytesOf(body.base64 ?? ""))],
  ].filter(Boolean);
  const place = h("div", null);
  const buttons = views.map(([name, make], index) =>
    h("button", { type: "button", class: "quiet", "aria-pressed": "false", onclick: () => choose(index, make) }, name),
  );
  const choose = (index, make) => {
    buttons.forEach((button, at) => {
      button.setAttribute("aria-pressed", String(at === index));
      button.classList.toggle("chosen", at === index);
    });
    place.replaceChildren(make());
  };
  choose(0, views[0][1]);
  return h(
    "div",
    null,
    !isBrief && facts([
      ["Size in the log", bytes(message.bodySize)],
      ["Size", bytes(body.plainSize, "it could not be uncompressed")],
      ["Compression", message.compression ?? "none"],
    ]),
    body.isCut &&
      h(
        "p",
        { class: "notice warn" },
        "▲ Only the beginning is shown: the body is too large for this page.",
      ),
    h("div", { class: "tabs", role: "group", "aria-label": "How the body is shown" }, buttons, download(message)),
    place,
  );
}

function download(message) {
  return h(
    "button",
    {
      type: "button",
      class: "quiet",
      onclick: () =>
        save(`${message.topic}-${message.queue}-${message.offset}.bin`, "application/octet-stream", [
          bytesOf(message.body?.base64 ?? ""),
        ]),
    },
    message.body?.isCut ? "Save what is shown" : "Save",
  );
}

// --- JSON ---

function keyPart(key) {
  return key === null ? null : [h("span", { class: "key" }, JSON.stringify(key)), ": "];
}

function node(key, value, depth) {
  if (value === null || typeof value !== "object" || value instanceof Written)
    return h("div", { class: "leaf" }, keyPart(key), leaf(value));
  const isList = Array.isArray(value);
  const entries = isList ? value.map((one, index) => [index, one]) : Object.entries(value);
  const [open, close] = isList ? "[]" : "{}";
  if (!entries.length) return h("div", { class: "leaf" }, keyPart(key), open + close);
  const inside = h("div", null);
  // What is folded is made when it is unfolded: bodies may be large.
  const fillIn = () => {
    if (inside.firstChild) return;
    inside.append(...entries.slice(0, CHILDREN_MAX).map(([name, one]) => node(name, one, depth + 1)));
    if (entries.length > CHILDREN_MAX)
      inside.append(h("div", { class: "leaf" }, `… and ${entries.length - CHILDREN_MAX} more; see the text view`));
  };
  const element = h(
    "details",
    { ontoggle: fillIn },
    h("summary", null, keyPart(key), open, h("span", { class: "note" }, ` ${entries.length} `), close),
    inside,
  );
  if (depth < 3 && entries.length <= 50) {
    fillIn();
    element.open = true;
  }
  return element;
}

function leaf(value) {
  if (typeof value === "string") return h("span", { class: "string" }, JSON.stringify(value));
  if (value instanceof Written) return h("span", { class: "number-value" }, value.text);
  if (typeof value === "number") return h("span", { class: "number-value" }, String(value));
  return h("span", { class: "word" }, String(value));
}

// --- bytes ---

export function hexLines(data, from = 0) {
  const lines = [];
  for (let at = 0; at < data.length; at += 16) {
    const part = [...data.subarray(at, at + 16)];
    const hex = part
      .map((one) => one.toString(16).padStart(2, "0"))
      .join(" ")
      .padEnd(47);
    const text = part.map((one) => (one >= 32 && one < 127 ? String.fromCharCode(one) : ".")).join("");
    lines.push(`${(from + at).toString(16).padStart(8, "0")}  ${hex}  ${text}`);
  }
  return lines.join("\n");
}

function hexView(data) {
  if (!data.length) return h("p", { class: "empty" }, "The body is empty.");
  let shown = 0;
  const box = h("pre", { class: "body hex", tabindex: "0", "aria-label": "body as bytes" });
  const more = h("button", { type: "button", onclick: () => grow() }, "Show more");
  const left = h("span", { class: "note" });
  const grow = () => {
    box.append(`${shown ? "\n" : ""}${hexLines(data.subarray(shown, shown + HEX_PORTION), shown)}`);
    shown = Math.min(shown + HEX_PORTION, data.length);
    more.hidden = shown >= data.length;
    left.replaceChildren(...(more.hidden ? [] : [count(data.length - shown), " bytes more"]));
  };
  grow();
  return h("div", null, box, h("div", { class: "pager" }, more, left));
}

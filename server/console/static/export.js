// A list that is shown, as a file: JSON as the broker told it, or CSV with a column for each field.
import { h } from "./dom.js";

const FORMULA = /^[=+\-@\t\r]/;

// "a.b" for a field b of a; lists of plain values in one cell, others as JSON.
export function flat(row, before = "", into = {}) {
  for (const [name, value] of Object.entries(row)) {
    const path = before ? `${before}.${name}` : name;
    if (Array.isArray(value))
      into[path] = value.every((one) => typeof one !== "object") ? value.join("; ") : JSON.stringify(value);
    else if (typeof value === "object" && value !== null) flat(value, path, into);
    else into[path] = value;
  }
  return into;
}

// A cell that a spreadsheet would take for a formula gets an apostrophe before it.
function cell(value) {
  if (value === undefined || value === null) return "";
  const isNumber = typeof value === "number" || /^-?\d+(\.\d+)?$/.test(value);
  const text = !isNumber && FORMULA.test(String(value)) ? `'${value}` : String(value);
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

export function csv(rows) {
  const flats = rows.map((row) => flat(row));
  const columns = [...new Set(flats.flatMap(Object.keys))];
  return [columns, ...flats.map((one) => columns.map((name) => one[name]))]
    .map((line) => line.map(cell).join(","))
    .join("\r\n");
}

export function save(name, type, parts) {
  const address = URL.createObjectURL(new Blob(parts, { type }));
  h("a", { href: address, download: name.replace(/[^\w.-]/g, "_") }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

export function exportButtons(stem, rows) {
  const button = (kind, act) =>
    h("button", { type: "button", class: "quiet", "aria-label": `Save what is shown as ${kind}`, onclick: act }, kind);
  return h(
    "span",
    { class: "export" },
    h("span", { class: "note", "aria-hidden": "true" }, "Save"),
    button("JSON", () => save(`${stem}.json`, "application/json", [JSON.stringify(rows, null, 2)])),
    button("CSV", () => save(`${stem}.csv`, "text/csv", [csv(rows)])),
  );
}

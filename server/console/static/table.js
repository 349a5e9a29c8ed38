// Tables that become cards on a phone, lists of facts, and pages of rows.
import { h } from "./dom.js";

// `dense` ones stay tables on a phone, and scroll in their box; `narrow` ones are no wider than they must. columns: [{title, cell: (row) => node or text, kind: "number" | "wide" | "act"}]
export function table(caption, columns, rows, { empty = "There are none.", dense = false, narrow = false } = {}) {
  if (!rows.length) return h("p", { class: "empty" }, empty);
  const head = h(
    "tr",
    { role: "row" },
    columns.map((one) => h("th", { scope: "col", role: "columnheader", class: one.kind ?? null }, one.title)),
  );
  const body = rows.map((row) =>
    h(
      "tr",
      { role: "row" },
      columns.map((one) =>
        h("td", { role: "cell", class: one.kind ?? null, "data-label": one.title }, h("div", null, one.cell(row))),
      ),
    ),
  );
  return h(
    "div",
    dense ? { class: "table-box", tabindex: "0", role: "region", "aria-label": caption } : { class: "table-box" },
    h(
      "table",
      { role: "table", class: `${dense ? "dense" : "cards"}${narrow ? " narrow" : ""}` },
      h("caption", { class: "away" }, caption),
      h("thead", { role: "rowgroup" }, head),
      h("tbody", { role: "rowgroup" }, body),
    ),
  );
}

// pairs: [[name, node or text], ...]; those that are null are left out.
export function facts(pairs, className = "") {
  return h(
    "dl",
    { class: `facts ${className}` },
    pairs.filter(Boolean).map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value ?? ""))),
  );
}

// A list with names behind `after` and a way back: load(after) -> {nodes, next}; `next` null at the end.
export function pager(render) {
  const trail = [];
  const bar = ({ next, refresh, note = null }) =>
    h(
      "div",
      { class: "pager" },
      h(
        "button",
        {
          type: "button",
          disabled: !trail.length,
          onclick: () => {
            trail.pop();
            refresh();
          },
        },
        "Back",
      ),
      h(
        "button",
        {
          type: "button",
          disabled: next === null || next === undefined,
          onclick: () => {
            trail.push(next);
            refresh();
          },
        },
        "Next",
      ),
      h("span", { class: "note" }, `page ${trail.length + 1}`, note && ["; ", note]),
    );
  return {
    bar,
    restart: () => {
      trail.length = 0;
    },
    get after() {
      return trail.at(-1);
    },
    render,
  };
}

export function attributesText(attributes) {
  const pairs = Object.entries(attributes ?? {});
  return pairs.length ? pairs.map(([name, value]) => h("div", { class: "mono" }, `${name} = ${value}`)) : "none";
}

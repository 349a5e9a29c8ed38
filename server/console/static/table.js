// Tables that become cards on a phone, lists of facts, and pages of rows.
import { h } from "./dom.js";
import { isPhone } from "./view.js";

const PHONE_ROWS = 20;

// What each table was last sorted by, so that it stays so when it comes anew: [column, whether it is descending].
const sorts = new Map();

// `dense` ones stay tables on a phone, and scroll in their box; `narrow` ones are no wider than they must;
// `lines` has one line for each row; rows of which `isPast` says so are grey. Their rows are
// sorted by the head of a column, those of the page that is shown alone.
// columns: [{title, cell: (row) => node or text, kind: "number" | "wide" | "fill" | "act"}]
export function table(caption, columns, rows, { empty = "There are none.", dense = false, narrow = false, lines = false, isPast = null } = {}) {
  if (!rows.length) return h("p", { class: "empty" }, empty);
  const body = h(
    "tbody",
    { role: "rowgroup" },
    rows.map((row) =>
      h(
        "tr",
        { role: "row", class: isPast?.(row) ? "past" : null },
        columns.map((one) =>
          h("td", { role: "cell", class: classOf(one), "data-label": one.title }, h("div", null, one.cell(row))),
        ),
      ),
    ),
  );
  const isSortable = !dense && rows.length > 1;
  const heads = columns.map((one) => {
    const sort = isSortable && one.kind !== "act" && one.title;
    return h("th", { scope: "col", role: "columnheader", class: classOf(one) }, sort ? h("button", { type: "button", class: "sort" }, one.title) : one.title);
  });
  const cut = dense || !isPhone() ? null : cutter(body);
  if (isSortable) sortable(caption, heads, body, cut);
  return h(
    "div",
    dense ? { class: "table-box", tabindex: "0", role: "region", "aria-label": caption } : { class: "table-box" },
    h(
      "table",
      { role: "table", class: `${dense ? "dense" : "cards"}${narrow ? " narrow" : ""}${lines ? " lines" : ""}` },
      h("caption", { class: "away" }, caption),
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, heads)),
      body,
    ),
    cut?.button,
  );
}

// On a phone the first rows, in the order that is shown, and a button for the others.
function cutter(body) {
  const rest = body.rows.length - PHONE_ROWS;
  if (rest <= 0) return null;
  const button = h("button", { type: "button", class: "quiet", onclick: () => show(true) }, `Show ${rest} more`);
  const show = (isAll) => {
    [...body.rows].forEach((row, at) => {
      row.hidden = !isAll && at >= PHONE_ROWS;
    });
    button.hidden = isAll;
  };
  show(false);
  return { button, again: () => show(button.hidden) };
}

// The first click sorts numbers and times from the largest on and texts from A, the second the other way, the third as it came.
function sortable(caption, heads, body, cut) {
  const key = `${location.hash.split("?")[0]} ${caption}`;
  const asCame = [...body.rows];
  const sort = () => {
    const [column, isDescending] = sorts.get(key) ?? [];
    heads.forEach((one, at) => {
      if (at === column) one.setAttribute("aria-sort", isDescending ? "descending" : "ascending");
      else one.removeAttribute("aria-sort");
    });
    if (column === undefined) body.append(...asCame);
    else body.append(...sortedBy(asCame, column, isDescending));
    cut?.again();
  };
  heads.forEach((head, at) => {
    head.querySelector("button")?.addEventListener("click", () => {
      const [column, isDescending] = sorts.get(key) ?? [];
      const first = asCame.some((row) => typeof sortValue(row.cells[at]) === "number");
      if (column !== at) sorts.set(key, [at, first]);
      else if (isDescending === first) sorts.set(key, [at, !first]);
      else sorts.delete(key);
      sort();
    });
  });
  if (sorts.has(key)) sort();
}

// What is not known is last, whichever way.
function sortedBy(rows, column, isDescending) {
  const values = new Map(rows.map((row) => [row, sortValue(row.cells[column])]));
  return [...rows].sort((one, other) => {
    const [a, b] = [values.get(one), values.get(other)];
    if (a === null || b === null) return (a === null) - (b === null);
    const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
    return isDescending ? -order : order;
  });
}

// Figures and times have their exact value on them.
export function sortValue(cell) {
  if (cell.querySelector(".unknown")) return null;
  const time = cell.querySelector("time");
  if (time) return Date.parse(time.getAttribute("datetime"));
  const text = (cell.querySelector(".figure")?.getAttribute("title") ?? cell.textContent).trim();
  const number = text.match(/^-?[\d,]+(\.\d+)?(?=$|\s)/);
  if (number) return Number(number[0].replaceAll(",", ""));
  return cell.classList.contains("number") ? 0 : text.toLowerCase();
}

// What has `less` is left out on a phone.
function classOf({ kind, less }) {
  return [kind, less && "less"].filter(Boolean).join(" ") || null;
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
  const bar = ({ next, refresh, note = null, extra = null }) =>
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
      extra,
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

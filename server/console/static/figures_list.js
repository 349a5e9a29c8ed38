// Topics or groups with their figures: the filter above them, which the address has, too, their order and their pages.
import { field } from "./dialog.js";
import { h } from "./dom.js";
import { exportButtons } from "./export.js";
import { firstSteps } from "./first_steps.js";
import { count } from "./format.js";
import { address } from "./links.js";
import { missingParts } from "./members.js";
import { pager } from "./table.js";
import { isPhone, section } from "./view.js";

const REFRESH_MS = 10000;
const TYPING_MS = 250;
const BY_NAME = "FIGURE_ORDER_UNSPECIFIED";
const ORDERS = [
  [BY_NAME, "name"],
  ["FIGURE_ORDER_BUSIEST", "busiest"],
  ["FIGURE_ORDER_LAG", "lag"],
];

// `kind` is "topic" or "group". `draw` makes the table of rows, and is told what was asked. Each of `switches` is a
// field of the request that is true or false: [its name, its name in the address, its label].
export function figuresList(view, { kind, method, draw, switches = [] }) {
  const rows = `${kind}s`;
  const asked = { contains: view.query("contains"), order: view.query("order", BY_NAME) };
  for (const [name, short] of switches) asked[name] = view.query(short) === "yes";
  const pages = pager();

  const load = async () => {
    const byName = asked.order === BY_NAME;
    const answer = await view.callFigures(method, {
      ...asked,
      after: byName ? (pages.after ?? "") : "",
      limit: isPhone() ? 20 : 50,
    });
    const found = answer[rows];
    if (!found.length && !asked.contains && pages.after === undefined) return firstSteps(view, rows);
    return [
      missingParts(answer.members),
      draw(found, asked),
      pages.bar({
        next: byName && answer.hasMore ? found.at(-1)[kind].name : null,
        refresh: () => list.refresh(),
        extra: found.length > 0 && exportButtons(rows, found),
        note: [
          count(answer.matching),
          " match",
          !byName && answer.hasMore && `; the first ${found.length} of those that are counted individually`,
        ],
      }),
    ];
  };
  const list = section(view, "List", load, { everyMs: REFRESH_MS });

  const ask = ({ elements }) => {
    asked.contains = elements.contains.value.trim();
    asked.order = elements.order.value;
    for (const [name, short] of switches) asked[name] = elements[short].checked;
    const query = { contains: asked.contains, order: asked.order === BY_NAME ? "" : asked.order };
    for (const [name, short] of switches) query[short] = asked[name] ? "yes" : "";
    history.replaceState(null, "", address([rows], query));
    pages.restart();
    list.refresh();
  };
  let typing = null;
  const filter = h(
    "form",
    {
      class: "panel filters",
      role: "search",
      onsubmit: (event) => {
        event.preventDefault();
        ask(filter);
      },
      oninput: () => {
        clearTimeout(typing);
        typing = setTimeout(() => ask(filter), TYPING_MS);
      },
    },
    h(
      "div",
      { class: "grow" },
      field({
        name: "contains",
        label: "Filter by name",
        type: "search",
        value: asked.contains,
        "data-first": true,
        placeholder: "part of the name",
      }),
    ),
    field({ name: "order", label: "Order", value: asked.order, options: ORDERS }),
    switches.map(([name, short, label]) => field({ name: short, label, type: "checkbox", value: asked[name] })),
  );
  view.add(filter, list);
}

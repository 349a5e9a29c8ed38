// Groups and how far they are behind.
import { field, formDialog } from "./dialog.js";
import { h } from "./dom.js";
import { badge, count } from "./format.js";
import { groupFields, groupRequest } from "./group_form.js";
import { address, groupLink, link, topicLink } from "./links.js";
import { lagOf } from "./pairs.js";
import { pager, table } from "./table.js";
import { isPhone, section } from "./view.js";

const REFRESH_MS = 10000;
const ORDERS = [
  ["FIGURE_ORDER_UNSPECIFIED", "name"],
  ["FIGURE_ORDER_BUSIEST", "busiest"],
  ["FIGURE_ORDER_LAG", "lag"],
];

export async function show(view) {
  view.begin("Groups", {
    actions: [h("button", { type: "button", class: "primary", onclick: () => create(view) }, "Create group")],
  });
  const asked = { contains: view.query("contains"), order: view.query("order", ORDERS[0][0]) };
  const pages = pager();
  const list = section(view, "List", () => load(view, asked, pages, () => list.refresh()), { everyMs: REFRESH_MS });
  let typing = null;
  const anew = (form) => {
    asked.contains = form.elements.contains.value.trim();
    asked.order = form.elements.order.value;
    history.replaceState(
      null,
      "",
      address(["groups"], { contains: asked.contains, order: asked.order === ORDERS[0][0] ? "" : asked.order }),
    );
    pages.restart();
    list.refresh();
  };
  view.add(
    h(
      "form",
      {
        class: "panel filters",
        role: "search",
        onsubmit: (event) => {
          event.preventDefault();
          anew(event.currentTarget);
        },
        oninput: (event) => {
          const form = event.currentTarget;
          clearTimeout(typing);
          typing = setTimeout(() => anew(form), 250);
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
    ),
    list,
  );
}

async function load(view, asked, pages, refresh) {
  const byName = asked.order === ORDERS[0][0];
  const answer = await view.call("OverviewService/ListGroupFigures", {
    ...asked,
    after: byName ? (pages.after ?? "") : "",
    limit: isPhone() ? 20 : 50,
  });
  const notAll = "one of its topics is not known: not in memory and not counted";
  return [
    table(
      "Groups",
      [
        { title: "Group", cell: (one) => groupLink(one.group.name) },
        { title: "State", cell: stateOf },
        { title: "Clients", kind: "number", cell: (one) => count(one.consumers) },
        { title: "Ready", kind: "number", cell: (one) => count(one.ready, notAll) },
        { title: "In flight", kind: "number", cell: (one) => count(one.inFlight, notAll) },
        { title: "Oldest waits", kind: "number", cell: lagOf },
        { title: "Topics", kind: "wide", cell: topicsOf },
        {
          title: "Dead letters",
          kind: "number",
          cell: (one) =>
            Number(one.deadLetters ?? 0) > 0
              ? link(["dead-letters", one.group.name], count(one.deadLetters))
              : count(one.deadLetters),
        },
      ],
      answer.groups,
      { empty: asked.contains ? `No group has "${asked.contains}" in its name.` : "There are no groups yet." },
    ),
    pages.bar({
      next: byName && answer.hasMore ? answer.groups.at(-1).group.name : null,
      refresh,
      note: [count(answer.matching), " match"],
    }),
  ];
}

function stateOf(one) {
  if (!one.group.enabled) return badge("warn", "disabled");
  if (Number(one.consumers) > 0) return badge("good", "clients are there");
  return Number(one.ready ?? 0) + Number(one.inFlight ?? 0) > 0
    ? badge("warn", "behind, nobody there")
    : badge("idle", "nobody there");
}

function topicsOf(one) {
  const more = Number(one.topicCount) - one.topics.length;
  if (!one.topics.length && Number(one.topicCount) === 0) return h("span", { class: "none" }, "has read none");
  return [
    one.topics.slice(0, 5).map((pair, at) => [at > 0 && ", ", topicLink(pair.topic)]),
    Number.isNaN(more)
      ? " and more"
      : more + Math.max(one.topics.length - 5, 0) > 0 && ` and ${more + Math.max(one.topics.length - 5, 0)} more`,
  ];
}

async function create(view) {
  const made = await formDialog({
    title: "Create a group",
    label: "Create",
    fields: groupFields(null),
    act: (values) => view.call("AdminService/CreateGroup", { name: values.name.trim(), ...groupRequest(values) }),
  });
  if (made) location.hash = address(["groups", made.name]);
}

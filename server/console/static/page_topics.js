// Topics with what they do and who reads them, how far behind.
import { attributesOf, topicFields } from "./topic_form.js";
import { field, formDialog } from "./dialog.js";
import { h } from "./dom.js";
import { age, bytes, count, isKnown, rate, topicType } from "./format.js";
import { address, link, topicLink } from "./links.js";
import { pairLine } from "./pairs.js";
import { pager, table } from "./table.js";
import { isPhone, section } from "./view.js";

const REFRESH_MS = 10000;
export const ORDERS = [
  ["FIGURE_ORDER_UNSPECIFIED", "name"],
  ["FIGURE_ORDER_BUSIEST", "busiest"],
  ["FIGURE_ORDER_LAG", "lag"],
];

export async function show(view) {
  view.begin("Topics", {
    actions: [h("button", { type: "button", class: "primary", onclick: () => create(view) }, "Create topic")],
  });
  const asked = {
    contains: view.query("contains"),
    order: view.query("order", ORDERS[0][0]),
    includeSystem: view.query("system") === "yes",
  };
  const pages = pager();
  const list = section(view, "List", () => load(view, asked, pages, () => list.refresh()), { everyMs: REFRESH_MS });
  const anew = (event) => {
    const form = event.currentTarget.form ?? event.currentTarget;
    asked.contains = form.elements.contains.value.trim();
    asked.order = form.elements.order.value;
    asked.includeSystem = form.elements.system.checked;
    history.replaceState(
      null,
      "",
      address(["topics"], {
        contains: asked.contains,
        order: asked.order === ORDERS[0][0] ? "" : asked.order,
        system: asked.includeSystem ? "yes" : "",
      }),
    );
    pages.restart();
    list.refresh();
  };
  let typing = null;
  const filters = h(
    "form",
    {
      class: "panel filters",
      role: "search",
      onsubmit: (event) => {
        event.preventDefault();
        anew(event);
      },
      oninput: (event) => {
        const form = event.currentTarget;
        clearTimeout(typing);
        typing = setTimeout(() => anew({ currentTarget: form }), 250);
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
    field({ name: "system", label: "also the broker's own", type: "checkbox", value: asked.includeSystem }),
  );
  view.add(filters, list);
}

async function load(view, asked, pages, refresh) {
  const byName = asked.order === ORDERS[0][0];
  const answer = await view.call("OverviewService/ListTopicFigures", {
    ...asked,
    after: byName ? (pages.after ?? "") : "",
    limit: isPhone() ? 20 : 50,
  });
  const last = answer.topics.at(-1)?.topic.name ?? null;
  return [
    table(
      "Topics",
      [
        { title: "Topic", cell: (one) => topicLink(one.topic.name) },
        { title: "Type", cell: (one) => topicType(one.topic.type) },
        {
          title: "Queues",
          kind: "number",
          cell: (one) =>
            one.topic.readQueues === one.topic.writeQueues
              ? count(one.topic.readQueues)
              : `${one.topic.readQueues} read, ${one.topic.writeQueues} write`,
        },
        {
          title: "Messages",
          kind: "number",
          cell: (one) => count(one.messages, "the topic has more queues than are looked at for a list"),
        },
        { title: "Size, about", kind: "number", cell: (one) => bytes(one.estimatedBytes) },
        {
          title: "In",
          kind: "number",
          cell: (one) => rate(one.sentPerSecond, "the topic is not counted by itself (metrics.top_topics)"),
        },
        {
          title: "Out",
          kind: "number",
          cell: (one) => rate(one.receivedPerSecond, "the topic is not counted by itself (metrics.top_topics)"),
        },
        {
          title: "Last message",
          cell: (one) =>
            isKnown(one.messages) && Number(one.messages) === 0 && !isKnown(one.lastStoredAtMs)
              ? h("span", { class: "none" }, "none is kept")
              : age(one.lastStoredAtMs),
        },
        { title: "Groups and lag", kind: "wide", cell: groupsOf },
      ],
      answer.topics,
      { empty: asked.contains ? `No topic has "${asked.contains}" in its name.` : "There are no topics yet." },
    ),
    pages.bar({
      next: byName && answer.hasMore ? last : null,
      refresh,
      note: [
        count(answer.matching),
        " match",
        !byName && answer.hasMore && `; the first ${answer.topics.length} of those that are counted one by one`,
      ],
    }),
  ];
}

function groupsOf(one) {
  if (!one.groups?.length)
    return h(
      "span",
      { class: "none" },
      Number(one.groupCount) === 0 ? "no group reads it" : [count(one.groupCount, "more than 1,000"), " groups"],
    );
  const rest = Number(one.groupCount) - one.groups.length;
  return h(
    "ul",
    { class: "groups" },
    one.groups.map((pair) => h("li", null, pairLine(pair))),
    !(rest <= 0) &&
      h("li", null, link(["topics", one.topic.name], Number.isNaN(rest) ? "and more" : `and ${rest} more`)),
  );
}

async function create(view) {
  const made = await formDialog({
    title: "Create a topic",
    label: "Create",
    fields: topicFields(null),
    act: (values) => view.call("AdminService/CreateTopic", { name: values.name.trim(), ...attributesOf(values) }),
  });
  if (made) location.hash = address(["topics", made.name]);
}

// Groups and how far they are behind.
import { formDialog } from "./dialog.js";
import { h } from "./dom.js";
import { figuresList } from "./figures_list.js";
import { badge, count } from "./format.js";
import { groupFields, groupRequest } from "./group_form.js";
import { address, groupLink, link, topicLink } from "./links.js";
import { lagOf } from "./pairs.js";
import { table } from "./table.js";

export async function show(view) {
  view.begin("Groups", {
    actions: [h("button", { type: "button", class: "primary", onclick: () => create(view) }, "Create group")],
  });
  figuresList(view, { kind: "group", method: "ListGroupFigures", draw });
  if (view.query("do") === "create") create(view);
}

function draw(groups, asked) {
  const notAll = "unknown for one of its topics, which is not in memory and was not counted";
  return table(
    "Groups",
    [
      { title: "Group", cell: (one) => groupLink(one.group.name) },
      { title: "State", cell: stateOf },
      { title: "Clients", kind: "number", cell: (one) => count(one.consumers) },
      { title: "Ready", kind: "number", cell: (one) => count(one.ready, notAll) },
      { title: "In flight", kind: "number", cell: (one) => count(one.inFlight, notAll) },
      { title: "Oldest waiting", kind: "number", cell: lagOf },
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
    groups,
    { empty: asked.contains ? `No group has "${asked.contains}" in its name.` : "There are no groups yet." },
  );
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
  history.replaceState(null, "", address([view.route.path[0]]));
  const made = await formDialog({
    title: "Create a group",
    label: "Create",
    fields: groupFields(null),
    act: (values) => view.call("AdminService/CreateGroup", { name: values.name.trim(), ...groupRequest(values) }),
  });
  if (made) location.hash = address(["groups", made.name]);
}

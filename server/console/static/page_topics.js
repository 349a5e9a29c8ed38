// Topics with what they do and who reads them, how far behind.
import { attributesOf, topicFields } from "./topic_form.js";
import { formDialog } from "./dialog.js";
import { h } from "./dom.js";
import { figuresList } from "./figures_list.js";
import { age, bytes, count, isKnown, rate, topicType } from "./format.js";
import { address, link, topicLink } from "./links.js";
import { pairLine } from "./pairs.js";
import { table } from "./table.js";

export async function show(view) {
  view.begin("Topics", {
    actions: [h("button", { type: "button", class: "primary", onclick: () => create(view) }, "Create topic")],
  });
  figuresList(view, {
    kind: "topic",
    method: "ListTopicFigures",
    draw,
    switches: [["includeSystem", "system", "also the broker's own"]],
  });
  if (view.query("do") === "create") create(view);
}

function draw(topics, asked) {
  return table(
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
        cell: (one) => count(one.messages, "the topic has too many queues to be counted for a list"),
      },
      { title: "Size, about", kind: "number", cell: (one) => bytes(one.estimatedBytes) },
      {
        title: "In",
        kind: "number",
        cell: (one) => rate(one.sentPerSecond, "the topic is not counted individually (metrics.top_topics)"),
      },
      {
        title: "Out",
        kind: "number",
        cell: (one) => rate(one.receivedPerSecond, "the topic is not counted individually (metrics.top_topics)"),
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
    topics,
    { empty: asked.contains ? `No topic has "${asked.contains}" in its name.` : "There are no topics yet." },
  );
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
  history.replaceState(null, "", address([view.route.path[0]]));
  const made = await formDialog({
    title: "Create a topic",
    label: "Create",
    fields: topicFields(null),
    act: (values) => view.call("AdminService/CreateTopic", { name: values.name.trim(), ...attributesOf(values) }),
  });
  if (made) location.hash = address(["topics", made.name]);
}

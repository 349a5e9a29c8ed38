// Lite topics of a topic: how many, which, and where a group has most before it.
import { confirm, field, valuesOf } from "./dialog.js";
import { h, replace } from "./dom.js";
import { age, badge, count, duration, isKnown } from "./format.js";
import { address, groupLink, link } from "./links.js";
import { groupField, topicField } from "./names.js";
import { facts, pager, table } from "./table.js";
import { isAbort, namedPanel, section } from "./view.js";
import { workButton } from "./work.js";

const LIMIT = 100;
const LOOKED_AT = 200;

export async function show(view) {
  view.begin("Lite topics");
  const place = h("div", { class: "page" });
  const form = h(
    "form",
    {
      class: "panel filters",
      onsubmit: (event) => {
        event.preventDefault();
        const { topic } = valuesOf(form);
        history.replaceState(null, "", address(["lite"], { topic: topic.trim() }));
        look(view, topic.trim(), place);
      },
    },
    h(
      "div",
      { class: "grow" },
      topicField(
        view,
        { label: "Parent topic", value: view.query("topic"), "data-first": true, hint: "a topic of type lite" },
        "TOPIC_TYPE_LITE",
      ),
    ),
    h("button", { type: "submit", class: "primary" }, "Show"),
  );
  view.add(
    form,
    section(view, "Parents", () => parents(view)),
    place,
  );
  if (view.query("topic")) look(view, view.query("topic"), place);
}

async function parents(view) {
  const { topics, hasMore } = await view.call("OverviewService/ListTopicFigures", { limit: LOOKED_AT });
  const found = topics.filter((one) => one.topic.type === "TOPIC_TYPE_LITE");
  const bound = found.length ? await readers(view) : new Map();
  return [
    table(
      "Topics of type lite",
      [
        { title: "Topic", cell: (one) => link(["lite"], one.topic.name, { topic: one.topic.name }, { class: "name" }) },
        { title: "Messages", kind: "number", cell: (one) => count(one.messages) },
        { title: "Last message", cell: (one) => age(one.lastStoredAtMs) },
        {
          title: "Groups",
          kind: "wide",
          cell: (one) =>
            bound.get(one.topic.name)?.map((name, at) => [at > 0 && ", ", groupLink(name)]) ??
            h("span", { class: "none" }, "no group is bound to it"),
        },
      ],
      found,
      { empty: hasMore ? `None among the first ${LOOKED_AT} topics: type its name.` : "There is none." },
    ),
    hasMore && h("p", { class: "note" }, `among the first ${LOOKED_AT} topics`),
  ];
}

// Groups of lite topics are bound to one parent.
async function readers(view) {
  const bound = new Map();
  try {
    const { groups } = await view.call("OverviewService/ListGroupFigures", { limit: LOOKED_AT });
    for (const { group } of groups) {
      const parent = group.attributes?.["lite.bind.topic"];
      if (parent) bound.set(parent, [...(bound.get(parent) ?? []), group.name]);
    }
  } catch (error) {
    if (isAbort(error)) throw error;
    // Who may not list groups types one in full.
  }
  return bound;
}

function look(view, topic, place) {
  const pages = pager();
  const asked = { prefix: "" };
  const figures = section(view, "Count and limits", () => statistics(view, topic), { level: 3 });
  const anew = () => {
    list.refresh();
    figures.refresh();
  };
  const list = section(view, "Lite topics", () => load(view, topic, asked, pages, anew));
  const filter = h(
    "form",
    {
      class: "panel filters",
      role: "search",
      onsubmit: (event) => {
        event.preventDefault();
        asked.prefix = valuesOf(filter).prefix.trim();
        pages.restart();
        list.refresh();
      },
    },
    h("div", { class: "grow" }, field({ name: "prefix", label: "Names that begin with", type: "search" })),
    h("button", { type: "submit" }, "Filter"),
  );
  replace(
    place,
    h("h2", null, topic),
    figures,
    backlog(view, topic),
    filter,
    list,
  );
}

const shareText = (share) => (share > 0 && share < 0.001 ? "under 0.1 %" : `${(share * 100).toFixed(1)} %`);

async function statistics(view, topic) {
  const it = await view.call("LiteTopicService/GetLiteTopicStatistics", { topic });
  const share =
    isKnown(it.liteTopics) && isKnown(it.liteTopicsMax) && Number(it.liteTopicsMax) > 0
      ? Number(it.liteTopics) / Number(it.liteTopicsMax)
      : null;
  return facts([
    ["Lite topics", count(it.liteTopics, "still being counted after a start")],
    ["Limit", isKnown(it.liteTopicsMax) ? count(it.liteTopicsMax) : "no limit"],
    share !== null && ["Share of the quota", badge(share > 0.9 ? "warn" : "good", `in use: ${shareText(share)}`)],
    ["Kept after the last message for", isKnown(it.ttlMs) ? duration(it.ttlMs) : "ever"],
  ]);
}

async function load(view, topic, { prefix }, pages, refresh) {
  const answer = await view.call("LiteTopicService/ListLiteTopics", {
    topic,
    prefix,
    after: pages.after ?? "",
    limit: LIMIT,
  });
  return [
    table(
      `Lite topics of ${topic}`,
      [
        {
          title: "Lite topic",
          cell: (one) => link(["messages"], one.name, { topic, lite: one.name }, { class: "name" }),
        },
        {
          title: "Messages",
          kind: "number",
          cell: (one) => count(BigInt(one.maximumOffset) - BigInt(one.minimumOffset)),
        },
        { title: "First offset", kind: "number", cell: (one) => count(one.minimumOffset) },
        { title: "Next offset", kind: "number", cell: (one) => count(one.maximumOffset) },
        {
          title: "Last message",
          cell: (one) =>
            isKnown(one.lastStoredAtMs) ? age(one.lastStoredAtMs) : h("span", { class: "none" }, "has left the log"),
        },
        { title: "Subscribers", kind: "number", cell: (one) => count(one.subscribers) },
        {
          title: "Remove",
          kind: "act",
          cell: (one) => workButton("Delete", () => remove(view, topic, one, refresh), { className: "quiet danger" }),
        },
      ],
      answer.liteTopics,
      { empty: prefix ? "No name begins with this." : "There is none." },
    ),
    pages.bar({ next: answer.hasMore ? answer.liteTopics.at(-1).name : null, refresh }),
  ];
}

async function remove(view, topic, one, refresh) {
  const done = await confirm({
    title: `Delete the lite topic ${one.name}?`,
    label: "Delete",
    danger: true,
    mustType: one.name,
    body: [
      "Its queue and the progress of all groups in it are deleted: ",
      count(BigInt(one.maximumOffset) - BigInt(one.minimumOffset)),
      " messages. The messages stay in the queues of the parent topic. A later message creates the lite topic again.",
    ],
    act: () => view.call("LiteTopicService/DeleteLiteTopic", { topic, liteTopic: one.name }),
  });
  if (done) refresh();
  return done ? "deleted" : null;
}

function backlog(view, topic) {
  const place = h("div");
  const showGroup = (group) =>
    replace(
      place,
      section(view, `Backlog of ${group}`, () => backlogTables(view, topic, group), { level: 3 }),
    );
  const form = h(
    "form",
    {
      class: "filters",
      onsubmit: (event) => {
        event.preventDefault();
        showGroup(valuesOf(form).group.trim());
      },
    },
    h("div", { class: "grow" }, groupField(view)),
    h("button", { type: "submit" }, "Show"),
  );
  // The first group that reads it is shown unasked.
  readers(view).then(
    (bound) => {
      const [first] = bound.get(topic) ?? [];
      if (!first || form.elements.group.value) return;
      form.elements.group.value = first;
      showGroup(first);
    },
    () => {},
  );
  return namedPanel(3, "Lite topics with the largest lag", form, place);
}

async function backlogTables(view, topic, group) {
  const it = await view.call("LiteTopicService/ListLiteBacklog", { topic, group, limit: 50 });
  return [
    !it.isComplete &&
      h(
        "p",
        { class: "notice warn" },
        `▲ There are more lite topics than the ${it.lookedAt ?? "first"} that were checked.`,
      ),
    table(
      "Lite topics with the largest lag of the group",
      [
        { title: "Lite topic", cell: (one) => link(["messages"], one.liteTopic, { topic, lite: one.liteTopic }) },
        { title: "Ready", kind: "number", cell: (one) => count(one.ready) },
        { title: "Oldest waiting since", cell: (one) => age(one.oldestStoredAtMs, "its record cannot be read") },
      ],
      it.liteTopics,
      { empty: "The group has no lag." },
    ),
    h("h3", null, "Clients and what waits for their next receive"),
    table(
      "Clients",
      [
        { title: "Client", kind: "wide", cell: (one) => h("span", { class: "mono" }, one.clientId) },
        { title: "Lite topics with messages", kind: "number", cell: (one) => count(one.liteTopicsReady) },
        {
          title: "Subscriptions",
          kind: "number",
          cell: (one) => (one.wantsAll ? "all, including future ones" : count(one.subscriptions)),
        },
      ],
      it.clients,
      { empty: "No client of the group has received messages recently." },
    ),
  ];
}

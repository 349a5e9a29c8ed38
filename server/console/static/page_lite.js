// Lite topics of a topic: how many, which, and where a group has most before it.
import { confirm, field, valuesOf } from "./dialog.js";
import { h, replace } from "./dom.js";
import { age, badge, count, duration, isKnown } from "./format.js";
import { address, groupLink, link } from "./links.js";
import { answered, isMany, memberColumn, missingParts, rowsOf, sumOf } from "./members.js";
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
  const { topics, hasMore, members } = await view.callFigures("ListTopicFigures", { limit: LOOKED_AT });
  const found = topics.filter((one) => one.topic.type === "TOPIC_TYPE_LITE");
  const bound = found.length ? await readers(view) : new Map();
  return [
    missingParts(members),
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
  const parts = await view.callMembers("LiteTopicService/GetLiteTopicStatistics", { topic });
  const its = answered(parts).map((one) => one.answers[0]);
  // Members have the same lite topics, but for those that got no message there.
  const most = (name) => (its.every((one) => isKnown(one[name])) ? Math.max(...its.map((one) => Number(one[name]))) : undefined);
  const it = { ...its[0], liteTopics: most("liteTopics") };
  const share =
    isKnown(it.liteTopics) && isKnown(it.liteTopicsMax) && Number(it.liteTopicsMax) > 0
      ? Number(it.liteTopics) / Number(it.liteTopicsMax)
      : null;
  return [missingParts(parts), facts([
    [isMany(parts) ? "Lite topics, on the member with most" : "Lite topics", count(it.liteTopics, "still being counted after a start")],
    ["Limit", isKnown(it.liteTopicsMax) ? count(it.liteTopicsMax) : "no limit"],
    share !== null && ["Share of the quota", badge(share > 0.9 ? "warn" : "good", `in use: ${shareText(share)}`)],
    ["Kept after the last message for", isKnown(it.ttlMs) ? duration(it.ttlMs) : "ever"],
  ])];
}

async function load(view, topic, { prefix }, pages, refresh) {
  const parts = await view.callMembers("LiteTopicService/ListLiteTopics", {
    topic,
    prefix,
    after: pages.after ?? "",
    limit: LIMIT,
  });
  const { liteTopics, hasMore } = liteTopicsOf(answered(parts));
  return [
    missingParts(parts),
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
          cell: (one) => count(one.messages),
        },
        isMany(parts) && { title: "Members", cell: (one) => (one.members.length === parts.length ? "all" : one.members.join(", ")) },
        !isMany(parts) && { title: "First offset", kind: "number", cell: (one) => count(one.minimumOffset) },
        !isMany(parts) && { title: "Next offset", kind: "number", cell: (one) => count(one.maximumOffset) },
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
      ].filter(Boolean),
      liteTopics,
      { empty: prefix ? "No name begins with this." : "There is none." },
    ),
    pages.bar({ next: hasMore ? liteTopics.at(-1).name : null, refresh }),
  ];
}

// One row for each name, with the sums of all members. The page ends where the first member's page does.
function liteTopicsOf(parts) {
  const ends = parts.filter((one) => one.answers[0].hasMore).map((one) => one.answers[0].liteTopics.at(-1).name);
  const end = ends.length ? ends.reduce((one, other) => (other < one ? other : one)) : null;
  const byName = new Map();
  for (const row of rowsOf(parts, (answer) => answer.liteTopics)) {
    if (end !== null && row.name > end) continue;
    const messages = Number(row.maximumOffset) - Number(row.minimumOffset);
    const sum = byName.get(row.name);
    if (!sum) {
      byName.set(row.name, { ...row, messages, members: [row.member] });
      continue;
    }
    sum.messages += messages;
    sum.members.push(row.member);
    sum.subscribers = Math.max(Number(sum.subscribers), Number(row.subscribers));
    if (Number(row.lastStoredAtMs ?? 0) > Number(sum.lastStoredAtMs ?? 0)) sum.lastStoredAtMs = row.lastStoredAtMs;
  }
  const names = [...byName.keys()].sort((one, other) => (one < other ? -1 : 1));
  return { liteTopics: names.map((name) => byName.get(name)), hasMore: end !== null };
}

async function remove(view, topic, one, refresh) {
  const done = await confirm({
    title: `Delete the lite topic ${one.name}?`,
    label: "Delete",
    danger: true,
    mustType: one.name,
    body: [
      "Its queue and the progress of all groups in it are deleted: ",
      count(one.messages),
      " messages. The messages stay in the queues of the parent topic. A later message creates the lite topic again.",
    ],
    act: () =>
      Promise.all(
        one.members.map((member) =>
          view.on(member).call("LiteTopicService/DeleteLiteTopic", { topic, liteTopic: one.name }),
        ),
      ),
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

const BACKLOG_ROWS = 50;

// Those with most before them, of all members; what waits for a client is a sum, as it receives from all of them.
function backlogOf(parts) {
  const clients = new Map();
  for (const row of rowsOf(parts, (answer) => answer.clients)) {
    const known = clients.get(row.clientId);
    if (known) known.liteTopicsReady = Number(known.liteTopicsReady) + Number(row.liteTopicsReady);
    else clients.set(row.clientId, row);
  }
  const liteTopics = rowsOf(parts, (answer) => answer.liteTopics).sort((one, other) => Number(other.ready) - Number(one.ready));
  return {
    isComplete: parts.every((one) => one.answers[0].isComplete),
    lookedAt: sumOf(parts, (one) => one.lookedAt),
    liteTopics: liteTopics.slice(0, BACKLOG_ROWS),
    clients: [...clients.values()],
  };
}

async function backlogTables(view, topic, group) {
  const parts = await view.callMembers("LiteTopicService/ListLiteBacklog", { topic, group, limit: BACKLOG_ROWS });
  const it = backlogOf(answered(parts));
  return [
    missingParts(parts),
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
        memberColumn(parts),
        { title: "Ready", kind: "number", cell: (one) => count(one.ready) },
        { title: "Oldest waiting since", cell: (one) => age(one.oldestStoredAtMs, "its record cannot be read") },
      ].filter(Boolean),
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

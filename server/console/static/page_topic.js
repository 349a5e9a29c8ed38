// One topic: settings, queues, who reads and who writes it, and a test message.
import { confirm, formDialog } from "./dialog.js";
import { clientsOf, clientsTable } from "./clients_table.js";
import { h } from "./dom.js";
import { age, bytes, count, duration, isKnown, permissionText, rate, topicType, unknown } from "./format.js";
import { address, link, messageLink } from "./links.js";
import { answered, isMany, isMissing, memberColumn, memberColumns, missingParts, rowsOf } from "./members.js";
import { pairsTable } from "./pairs.js";
import { sendForm } from "./send.js";
import { attributesText, facts, pager, table } from "./table.js";
import { tabs } from "./tabs.js";
import { attributesOf, topicFields } from "./topic_form.js";
import { activity, figuresByMember, figuresOf } from "./watched.js";
import { missing, section } from "./view.js";

const REFRESH_MS = 10000;

export async function show(view) {
  const name = view.route.path[1];
  let topic = null;
  view.begin(name, { lead: [link(["topics"], "Topics"), " / topic"] });
  try {
    topic = await view.call("AdminService/GetTopic", { name });
  } catch (error) {
    if (error.code === "NOT_FOUND") {
      view.add(missing("topic", name));
      return;
    }
    if (error.code !== "PERMISSION_DENIED") throw error;
  }
  const settings = section(view, "Settings", async () => {
      topic = await view.call("AdminService/GetTopic", { name });
      return facts([
        ["Type", topicType(topic.type)],
        ["Queues to read", count(topic.readQueues)],
        ["Queues to write", count(topic.writeQueues)],
        ["Permission", permissionText(topic.permission)],
        ["Attributes", attributesText(topic.attributes)],
      ]);
    });
  view.actions.prepend(
    link(["messages"], "Messages", { topic: name }),
    link(["tail"], "Live tail", { topic: name }),
    h("button", { type: "button", onclick: () => edit(view, name, () => topic, () => settings.refresh()) }, "Edit"),
    h("button", { type: "button", class: "danger", onclick: () => remove(view, name) }, "Delete topic"),
  );
  const pages = pager();
  const queues = () => {
    const list = section(view, "Queues", () => queuesTable(view, name, pages, () => list.refresh()));
    return list;
  };
  const clients = () =>
    section(view, "Producers and consumers", async () =>
      clientsTable(view, await clientsOf(view, { topic: name }), { empty: "No client of this topic is connected." }),
    );
  tabs(view, ["topics", name], [
    ["overview", "Overview", () => [groupsOf(view, name), byMember(view, name), activity(view, "topic", name), settings]],
    ["queues", "Queues", queues],
    ["clients", "Clients", clients],
    ["send", "Send a message", () => sendForm(view, name, () => {})],
  ]);
}

function groupsOf(view, name) {
  return section(
    view,
    "Groups",
    async () => {
      const { own, members } = await figuresOf(view, "topic", name);
      if (!own) return h("p", { class: "empty" }, "The broker has no figures of this topic.");
      const more = Number(own.groupCount) - own.groups.length;
      return [
        missingParts(members),
        pairsTable(`Groups that read ${name}`, own.groups, "group", "No group has read it."),
        more > 0 && h("p", { class: "note" }, `and ${more} more groups`),
      ];
    },
    { everyMs: REFRESH_MS },
  );
}

// What each member has of it: its messages, and what comes and goes there. Nothing of a broker that is alone.
function byMember(view, name) {
  const list = section(
    view,
    "By member",
    async () => {
      const parts = await figuresByMember(view, "topic", name);
      list.hidden = !isMany(parts);
      return table(
        `${name} by member`,
        memberColumns([
          { title: "Messages", kind: "number", figure: (one) => count(one.messages) },
          { title: "Size, about", kind: "number", figure: (one) => bytes(one.estimatedBytes) },
          { title: "In", kind: "number", figure: (one) => rate(one.sentPerSecond) },
          { title: "Out", kind: "number", figure: (one) => rate(one.receivedPerSecond) },
          {
            title: "Ready",
            kind: "number",
            figure: (one) => count((one.groups ?? []).reduce((sum, pair) => sum + Number(pair.ready ?? 0), 0)),
          },
          {
            title: "Last message",
            figure: (one) =>
              isKnown(one.lastStoredAtMs) ? age(one.lastStoredAtMs) : h("span", { class: "none" }, "none is kept"),
          },
        ]),
        parts,
        { isPast: isMissing },
      );
    },
    { everyMs: REFRESH_MS },
  );
  list.hidden = true;
  return list;
}

async function queuesTable(view, topic, pages, refresh) {
  const parts = await view.callMembers("StorageService/ListQueueSpans", {
    topic,
    limit: 100,
    ...(pages.after === undefined ? {} : { after: pages.after }),
  });
  const there = answered(parts);
  const queues = rowsOf(there, (answer) => answer.queues);
  // Members have the same queues, but for those that hold nothing any more: the page ends where the shortest one does.
  const ends = there.filter((one) => one.answers[0].hasMore).map((one) => one.answers[0].queues.at(-1).queue);
  const next = ends.length ? Math.min(...ends) : null;
  const shown = queues.filter((one) => next === null || one.queue <= next);
  return [
    missingParts(parts),
    spansTable(topic, isMany(parts) ? shown.sort((one, other) => one.queue - other.queue) : shown, undefined, parts),
    pages.bar({ next, refresh }),
  ];
}

export function spansTable(topic, queues, why = undefined, parts = []) {
  const isEmpty = (one) => one.minimumOffset === one.maximumOffset;
  const when = (one, ms) => (isEmpty(one) ? h("span", { class: "none" }, "holds nothing") : age(ms, why));
  return table(
    `Queues of ${topic}`,
    [
      { title: "Queue", kind: "number", cell: (one) => String(one.queue) },
      memberColumn(parts),
      {
        title: "First offset",
        kind: "number",
        less: true,
        cell: (one) =>
          isEmpty(one)
            ? count(one.minimumOffset)
            : messageLink(topic, one.queue, one.minimumOffset, count(one.minimumOffset), one.member),
      },
      { title: "Next offset", kind: "number", cell: (one) => count(one.maximumOffset) },
      {
        title: "Messages",
        kind: "number",
        cell: (one) => count(BigInt(one.maximumOffset) - BigInt(one.minimumOffset)),
      },
      { title: "First stored", less: true, cell: (one) => when(one, one.firstStoredAtMs) },
      { title: "Last stored", cell: (one) => when(one, one.lastStoredAtMs) },
      {
        title: "Spans",
        kind: "number",
        less: true,
        cell: (one) =>
          isEmpty(one)
            ? h("span", { class: "none" }, "nothing")
            : isKnown(one.firstStoredAtMs) && isKnown(one.lastStoredAtMs)
              ? duration(one.lastStoredAtMs - one.firstStoredAtMs)
              : unknown(why),
      },
      { title: "Expires next", kind: "number", less: true, cell: (one) => count(one.expiresNext, "no file is known to expire next") },
      {
        title: "Read",
        kind: "act",
        cell: (one) => (isEmpty(one) ? "" : link(["messages"], "Messages", { topic, queue: one.queue })),
      },
    ].filter(Boolean),
    queues,
    { empty: "The topic has no queues with messages, now or earlier." },
  );
}

async function edit(view, name, topicNow, refresh) {
  const topic = topicNow();
  if (!topic) return;
  const done = await formDialog({
    title: `Edit ${name}`,
    label: "Save",
    fields: topicFields(topic),
    act: (values) => view.call("AdminService/UpdateTopic", { name, ...attributesOf(values, topic) }),
  });
  if (done) refresh();
}

async function remove(view, name) {
  const done = await confirm({
    title: "Delete the topic?",
    label: "Delete the topic",
    danger: true,
    mustType: name,
    body: [
      h(
        "p",
        null,
        "The topic, its queues and the progress of all groups in them are deleted. Its messages cannot be read any more. This cannot be undone.",
      ),
      await losses(view, name),
    ],
    act: () => view.call("AdminService/DeleteTopic", { name }),
  });
  if (done) location.hash = address(["topics"]);
}

// What is there that would be gone.
async function losses(view, topic) {
  try {
    const parts = await view.callMembers("AdminService/ListQueues", { topic });
    const queues = rowsOf(answered(parts), (answer) => answer.queues);
    const messages = queues.reduce((sum, one) => sum + BigInt(one.maximumOffset) - BigInt(one.minimumOffset), 0n);
    return [
      h("p", null, h("strong", null, count(messages), " messages"), ` in ${queues.length} queues would be lost.`),
      missingParts(parts),
    ];
  } catch (error) {
    return h("p", null, "How many messages would be gone is unknown: ", error.message);
  }
}

// One group: how far it is in each queue, who is there, dead letters, and moving where it reads.
import { clientsOf, clientsTable } from "./clients_table.js";
import { confirm, formDialog } from "./dialog.js";
import { h } from "./dom.js";
import { age, badge, count, duration, isKnown, unknown } from "./format.js";
import { backoffText, groupFields, groupRequest } from "./group_form.js";
import { address, link, topicLink } from "./links.js";
import { answered, isMany, isMissing, memberColumn, memberColumns, missingParts, rowsOf } from "./members.js";
import { pairsTable } from "./pairs.js";
import { resetForm } from "./reset.js";
import { attributesText, facts, table } from "./table.js";
import { tabs } from "./tabs.js";
import { isAbort, missing, section } from "./view.js";
import { activity, figuresByMember, figuresOf } from "./watched.js";
import { workButton } from "./work.js";

const REFRESH_MS = 10000;
const QUEUES_SHOWN = 500;
const TOPICS_ASKED = 20;

export async function show(view) {
  const name = view.route.path[1];
  let group = null;
  view.begin(name, { lead: [link(["groups"], "Groups"), " / group"] });
  try {
    group = await view.call("AdminService/GetGroup", { name });
  } catch (error) {
    if (error.code === "NOT_FOUND") {
      view.add(missing("group", name));
      return;
    }
    if (error.code !== "PERMISSION_DENIED") throw error;
  }
  const toggle = h("span");
  const settings = section(view, "Settings", async () => {
    group = await view.call("AdminService/GetGroup", { name });
    toggle.replaceChildren(enabling(view, group, () => settings.refresh()));
    return facts([
      ["State", group.enabled ? badge("good", "enabled") : badge("warn", "disabled")],
      ["Order", group.fifo ? "FIFO" : "any"],
      ["Deliveries before a dead letter", count(group.maxAttempts)],
      ["Delays before redeliveries", backoffText(group)],
      ["Attributes", attributesText(group.attributes)],
    ]);
  });
  view.actions.prepend(
    toggle,
    h("button", { type: "button", onclick: () => edit(view, () => group, settings.refresh) }, "Edit"),
    h("button", { type: "button", class: "danger", onclick: () => remove(view, name) }, "Delete group"),
  );
  const clients = () =>
    section(
      view,
      "Connected clients",
      async () =>
        clientsTable(view, await clientsOf(view, { group: name }), {
          empty: "No client of this group is connected.",
        }),
      { everyMs: REFRESH_MS },
    );
  tabs(view, ["groups", name], [
    ["overview", "Overview", () => [progress(view, name), byMember(view, name), activity(view, "group", name), settings]],
    ["queues", "Queues", () => section(view, "Progress by queue", () => queuesTable(view, name), { everyMs: REFRESH_MS })],
    ["clients", "Clients", clients],
    ["reset", "Reset offsets", () => resetForm(view, name, () => {})],
  ]);
}

function enabling(view, group, refresh) {
  const to = !group.enabled;
  return workButton(to ? "Enable" : "Disable", async () => {
    const act = () => view.call("AdminService/UpdateGroup", { name: group.name, enabled: to });
    const done = to
      ? await act()
      : await confirm({
          title: "Disable the group?",
          label: "Disable",
          danger: true,
          act,
          body: "Its clients get no messages until it is enabled again. Its position in all queues is kept.",
        });
    if (done) refresh();
    return done ? (to ? "enabled" : "disabled") : null;
  });
}

function progress(view, name) {
  return section(
    view,
    "Topics and lag",
    async () => {
      const { own, members } = await figuresOf(view, "group", name);
      if (!own) return unknown("the broker has no stats of this group");
      return [
        missingParts(members),
        summary(own),
        pairsTable(`Topics of ${name}`, own.topics, "topic", "The group has read no topic."),
        !(Number(own.topicCount) <= own.topics.length) &&
          h(
            "p",
            { class: "note" },
            isKnown(own.topicCount)
              ? `and ${Number(own.topicCount) - own.topics.length} more topics`
              : "and more topics",
          ),
      ];
    },
    { everyMs: REFRESH_MS },
  );
}

// How far behind the group is on each member. Nothing of a broker that is alone.
function byMember(view, name) {
  const list = section(
    view,
    "By member",
    async () => {
      const parts = await figuresByMember(view, "group", name);
      list.hidden = !isMany(parts);
      return table(
        `${name} by member`,
        memberColumns([
          { title: "Ready", kind: "number", figure: (one) => count(one.ready) },
          { title: "In flight", kind: "number", figure: (one) => count(one.inFlight) },
          {
            title: "Oldest waiting",
            kind: "number",
            figure: (one) => (isKnown(one.lagMs) && Number(one.lagMs) === 0 ? "nothing waiting" : duration(one.lagMs)),
          },
          { title: "Dead letters", kind: "number", figure: (one) => count(one.deadLetters) },
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

function summary(own) {
  return facts([
    ["Ready in total", count(own.ready)],
    ["In flight in total", count(own.inFlight)],
    ["Oldest waiting", isKnown(own.lagMs) && Number(own.lagMs) === 0 ? "nothing waiting" : duration(own.lagMs)],
    ["Clients", count(own.consumers)],
    [
      "Dead letters that were never sent again",
      [
        count(own.deadLetters),
        " ",
        Number(own.deadLetters) > 0 && badge("warn", "look"),
        " ",
        link(["dead-letters", own.group.name], "Dead letters and retries"),
      ],
    ],
  ]);
}

// Offsets and times tell how far it is: those of the last message of each queue, and of the last one that it has gone past.
async function queuesTable(view, name) {
  const parts = await view.callMembers("Admin/QueryTimeSpan", { group: { name } });
  const spans = rowsOf(answered(parts), (answer) => answer.queueTimeSpanList);
  const known = (ms) => Number(ms) > 0;
  const stands = await standsOf(view, name, spans.slice(0, QUEUES_SHOWN));
  const stand = (one) => stands.get(`${one.messageQueue.id} ${one.member} ${one.messageQueue.topic.name}`);
  const notTold = "shown only for topics that you may see, and only for the first ones";
  return [
    missingParts(parts),
    table(
      `Queues that ${name} reads`,
      [
        { title: "Topic", cell: (one) => topicLink(one.messageQueue.topic.name) },
        { title: "Queue", kind: "number", cell: (one) => String(one.messageQueue.id) },
        memberColumn(parts),
        { title: "Next offset to read", kind: "number", cell: (one) => count(stand(one)?.nextOffset, notTold) },
        { title: "Max offset", kind: "number", cell: (one) => count(stand(one)?.maximumOffset, notTold) },
        {
          title: "Left",
          kind: "number",
          cell: (one) =>
            isKnown(stand(one)?.nextOffset)
              ? count(BigInt(stand(one).maximumOffset) - BigInt(stand(one).nextOffset))
              : unknown(notTold),
        },
        {
          title: "Last stored",
          cell: (one) =>
            known(one.maxTimestamp) ? age(one.maxTimestamp) : h("span", { class: "none" }, "holds nothing"),
        },
        {
          title: "Read up to",
          cell: (one) =>
            known(one.consumeTimestamp)
              ? age(one.consumeTimestamp)
              : h("span", { class: "none" }, "nothing consumed yet"),
        },
        {
          title: "Delay",
          kind: "number",
          cell: (one) =>
            Number(one.delayTimeMs) > 0
              ? badge("warn", `lag ${seconds(one.delayTimeMs)}`)
              : badge("good", "none"),
        },
      ].filter(Boolean),
      spans.slice(0, QUEUES_SHOWN),
      { empty: "The group has read no queue." },
    ),
    spans.length > QUEUES_SHOWN && h("p", { class: "note" }, `and ${spans.length - QUEUES_SHOWN} more queues`),
  ];
}

// Where the group reads next in each queue, of the first topics.
async function standsOf(view, group, spans) {
  const found = new Map();
  const topics = [...new Set(spans.map((one) => one.messageQueue.topic.name))].slice(0, TOPICS_ASKED);
  await Promise.all(
    topics.map(async (topic) => {
      try {
        const parts = await view.callMembers("StorageService/ListQueueSpans", { topic, group, limit: 1000 });
        for (const one of rowsOf(parts, (answer) => answer.queues))
          found.set(`${one.queue} ${one.member} ${topic}`, one);
      } catch (error) {
        if (isAbort(error) || !["PERMISSION_DENIED", "NOT_FOUND", "UNIMPLEMENTED"].includes(error.code)) throw error;
      }
    }),
  );
  return found;
}

const seconds = (ms) => `${(Number(ms) / 1000).toLocaleString("en", { maximumFractionDigits: 1 })} s`;

async function edit(view, groupNow, refresh) {
  const group = groupNow();
  if (!group) return;
  const done = await formDialog({
    title: `Edit ${group.name}`,
    label: "Save",
    fields: groupFields(group),
    act: (values) => view.call("AdminService/UpdateGroup", { name: group.name, ...groupRequest(values, group) }),
  });
  if (done) refresh();
}

async function remove(view, name) {
  const done = await confirm({
    title: "Delete the group?",
    label: "Delete the group",
    danger: true,
    mustType: name,
    body: "Its positions in all topics are deleted. A group created later with the same name starts as a new one.",
    act: () => view.call("AdminService/DeleteGroup", { name }),
  });
  if (done) location.hash = address(["groups"]);
}

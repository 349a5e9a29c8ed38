// Dead letters of a group, and what it still tries: chosen ones or all are sent to the group once more.
import { confirm } from "./dialog.js";
import { h, replace } from "./dom.js";
import { age, badge, count, unknown } from "./format.js";
import { address, groupLink, link, messageLink, topicLink } from "./links.js";
import { groupField } from "./names.js";
import { facts, pager, table } from "./table.js";
import { panel, section } from "./view.js";
import { beginJob, countsText, followJob, runJob, workButton } from "./work.js";

const LIMIT = 100;
const CHOSEN_MAX = 1000;

export async function show(view) {
  const group = view.route.path[1];
  if (!group) {
    await showAll(view);
    return;
  }
  view.begin(`Dead letters of ${group}`, { lead: [link(["dead-letters"], "Dead letters"), " / ", groupLink(group)] });
  const state = { chosen: new Set(), pages: pager(), from: null };
  const place = h("div", { role: "status" });
  const list = section(view, "Dead letters", () => load(view, group, state, () => list.refresh()));
  view.add(
    section(view, "Waiting for their next attempt", () => retries(view, group), { everyMs: 10000 }),
    list,
    panel(
      "Send them again",
      h(
        "div",
        { class: "pager" },
        workButton("Send selected again", () => resendChosen(view, group, state, place, () => list.refresh())),
        workButton("Send all that were never sent again", () => resendAll(view, group, place, () => list.refresh())),
      ),
      place,
    ),
  );
}

async function showAll(view) {
  view.begin("Dead letters", { lead: "Messages that a group did not acknowledge in any of its attempts." });
  const ask = groupField(view, { "data-first": true });
  view.add(
    h(
      "form",
      {
        class: "panel filters",
        onsubmit: (event) => {
          event.preventDefault();
          location.hash = address(["dead-letters", ask.querySelector("input").value.trim()]);
        },
      },
      h("div", { class: "grow" }, ask),
      h("button", { type: "submit" }, "Show"),
    ),
  );
  const pages = pager();
  const list = section(view, "Groups", async () => {
    const answer = await view.call("OverviewService/ListGroupFigures", { after: pages.after ?? "", limit: 200 });
    // Those without are left out; where it is not known it is said.
    const rows = answer.groups.filter((one) => one.deadLetters === undefined || Number(one.deadLetters) > 0);
    return [
      table(
        "Groups with dead letters",
        [
          {
            title: "Group",
            cell: (one) => link(["dead-letters", one.group.name], one.group.name, {}, { class: "name" }),
          },
          { title: "Never sent again", kind: "number", cell: (one) => count(one.deadLetters) },
          { title: "In flight or waiting for a retry", kind: "number", cell: (one) => count(one.inFlight) },
        ],
        rows,
        { empty: `None of these ${answer.groups.length} groups has dead letters that were never sent again.` },
      ),
      pages.bar({ next: answer.hasMore ? answer.groups.at(-1).group.name : null, refresh: () => list.refresh() }),
    ];
  });
  view.add(list);
}

async function retries(view, group) {
  const { topicAccumulation: topics } = await view.call("Admin/DescribeGroupAccumulation", { group: { name: group } });
  return [
    table(
      "Topics of the group",
      [
        { title: "Topic", cell: ([topic]) => topicLink(topic) },
        { title: "Delivered and not finished", kind: "number", cell: ([, one]) => count(one.inflightMessages) },
        { title: "Never delivered", kind: "number", cell: ([, one]) => count(one.readyMessages) },
        {
          title: "Last finished message stored",
          cell: ([, one]) =>
            Number(one.lastConsumeTimestamp) > 0
              ? age(one.lastConsumeTimestamp)
              : h("span", { class: "none" }, "none yet"),
        },
        { title: "Look", kind: "act", cell: ([topic]) => link(["messages"], "Messages", { topic }) },
      ],
      Object.entries(topics ?? {}),
      { empty: "The group has read no topic." },
    ),
    h(
      "p",
      { class: "note" },
      "The page of a message shows its delivery attempts and the client that has it.",
    ),
  ];
}

async function load(view, group, state, refresh) {
  const from = state.pages.after ?? state.from;
  const request = { group, count: LIMIT, ...(from === null ? {} : { fromOffset: from }) };
  const answer = await view.call("DeadLetterService/ListDeadLetters", request);
  const chosen = h("span", { class: "note", role: "status" });
  const told = () => replace(chosen, `${state.chosen.size} selected`);
  told();
  const next = answer.deadLetters.length ? BigInt(answer.deadLetters.at(-1).offset) + 1n : null;
  const hasMore = next !== null && next < BigInt(answer.maximumOffset);
  return [
    facts([
      ["Kept", count(BigInt(answer.maximumOffset) - BigInt(answer.minimumOffset))],
      ["Never sent again", count(BigInt(answer.maximumOffset) - BigInt(answer.nextOffset))],
    ]),
    h(
      "div",
      { class: "pager" },
      h(
        "button",
        {
          type: "button",
          class: "quiet",
          onclick: () => {
            state.from = state.from === null ? answer.minimumOffset : null;
            state.pages.restart();
            refresh();
          },
        },
        state.from === null ? "Also show those sent again" : "Show only those never sent again",
      ),
      h(
        "button",
        {
          type: "button",
          class: "quiet",
          onclick: () => {
            for (const one of answer.deadLetters) state.chosen.add(one.offset);
            refresh();
          },
        },
        "Select this page",
      ),
      h(
        "button",
        {
          type: "button",
          class: "quiet",
          onclick: () => {
            state.chosen.clear();
            refresh();
          },
        },
        "Select none",
      ),
      chosen,
    ),
    lettersTable(group, answer.deadLetters, state.chosen, told),
    state.pages.bar({ next: hasMore ? String(next) : null, refresh }),
  ];
}

function lettersTable(group, letters, chosen, told) {
  return table(
    `Dead letters of ${group}`,
    [
      {
        title: "Choose",
        cell: (one) => {
          const box = h("input", {
            type: "checkbox",
            "aria-label": `select the dead letter at offset ${one.offset}`,
            onchange: () => {
              if (box.checked) chosen.add(one.offset);
              else chosen.delete(one.offset);
              told();
            },
          });
          box.checked = chosen.has(one.offset);
          return box;
        },
      },
      { title: "Offset", kind: "number", cell: (one) => messageLink(`%DLQ%${group}`, 0, one.offset, one.offset) },
      { title: "Stored", cell: (one) => age(one.storedAtMs) },
      { title: "Came from", cell: (one) => (one.topic ? topicLink(one.topic) : unknown("not in the record")) },
      { title: "Id", kind: "wide", cell: (one) => h("span", { class: "mono" }, one.messageId) },
      { title: "Tag", cell: (one) => one.tag || h("span", { class: "none" }, "none") },
      {
        title: "Keys",
        cell: (one) =>
          one.keys?.length
            ? one.keys.map((key) => [link(["trace"], key, { topic: one.topic, key }), " "])
            : h("span", { class: "none" }, "none"),
      },
      { title: "Attempts", kind: "number", cell: (one) => count(one.attempts) },
      {
        title: "State",
        cell: (one) => (one.wasResent ? badge("good", "sent again") : badge("warn", "never sent again")),
      },
    ],
    letters,
    { empty: "There are none." },
  );
}

async function resendChosen(view, group, state, place, refresh) {
  const offsets = [...state.chosen];
  if (!offsets.length) return "Select some first.";
  if (offsets.length > CHOSEN_MAX) return `At most ${CHOSEN_MAX} can be selected at a time.`;
  const dry = await view.call("DeadLetterService/ResendDeadLetters", { group, offsets, dryRun: true });
  const refused = (dry.refused ?? []).map((one) => h("li", null, `offset ${one.offset}: ${one.reason}`));
  const job = await confirm({
    title: "Send the selected dead letters again?",
    label: `Send ${dry.resent}`,
    body: [
      h("p", null, count(dry.resent), ` would be sent to ${group}, once each.`),
      refused.length > 0 && [h("p", null, "Those stay where they are:"), h("ul", null, refused)],
    ],
    act: () => beginJob(view, { resendDeadLetters: { group, offsets } }),
  });
  if (!job) return null;
  state.chosen.clear();
  return follow(view, job, place, refresh);
}

async function resendAll(view, group, place, refresh) {
  const counted = await runJob(view, { resendDeadLetters: { group } }, { dryRun: true, place });
  if (counted.state !== "done") return `the dry run is ${counted.state}`;
  const job = await confirm({
    title: "Send all dead letters again?",
    label: "Send all",
    body: ["Would be done for ", group, ": ", countsText(counted.counts)],
    act: () => beginJob(view, { resendDeadLetters: { group } }),
  });
  if (!job) return null;
  return follow(view, job, place, refresh);
}

function follow(view, job, place, refresh) {
  return new Promise((resolve) =>
    place.replaceChildren(
      followJob(view, job, (ended) => {
        refresh();
        resolve(`the job is ${ended.state}`);
      }),
    ),
  );
}

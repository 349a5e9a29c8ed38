// Dead letters of a group, and what it still tries: chosen ones or all are sent to the group once more.
import { confirm } from "./dialog.js";
import { h, replace } from "./dom.js";
import { age, badge, count, none, unknown } from "./format.js";
import { address, groupLink, link, messageLink, topicLink } from "./links.js";
import { answered, isMany, memberColumn, missingParts, rowsOf, sumOf } from "./members.js";
import { groupField } from "./names.js";
import { passedOver } from "./page_messages.js";
import { exportButtons } from "./export.js";
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
  // Offsets are those of a member: what is chosen is [member, offset] by both together.
  const state = { chosen: new Map(), pages: pager(), isAll: false };
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
    const answer = await view.callFigures("ListGroupFigures", { after: pages.after ?? "", limit: 200 });
    // Those without are left out; where it is not known it is said.
    const rows = answer.groups.filter((one) => one.deadLetters === undefined || Number(one.deadLetters) > 0);
    return [
      missingParts(answer.members),
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
      pages.bar({
        next: answer.hasMore ? answer.groups.at(-1).group.name : null,
        refresh: () => list.refresh(),
        extra: rows.length > 0 && exportButtons("dead-letters", rows),
      }),
    ];
  });
  view.add(list);
}

async function retries(view, group) {
  const parts = await view.callMembers("Admin/DescribeGroupAccumulation", { group: { name: group } });
  const topics = accumulated(answered(parts));
  return [
    missingParts(parts),
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

// What is in flight and ready in each topic, on all members together.
function accumulated(parts) {
  const topics = {};
  for (const [name, one] of parts.flatMap((part) => Object.entries(part.answers[0].topicAccumulation ?? {}))) {
    const sum = (topics[name] ??= { inflightMessages: 0, readyMessages: 0, lastConsumeTimestamp: 0 });
    sum.inflightMessages += Number(one.inflightMessages);
    sum.readyMessages += Number(one.readyMessages);
    sum.lastConsumeTimestamp = Math.max(sum.lastConsumeTimestamp, Number(one.lastConsumeTimestamp));
  }
  return topics;
}

// Where each member's letters begin: `after` has the next offset by member, those that are missing have no more.
async function askLetters(view, group, state) {
  const { after } = state.pages;
  if (after === undefined) {
    const parts = await view.callMembers("DeadLetterService/ListDeadLetters", { group, count: LIMIT });
    if (!state.isAll) return parts;
    return onEach(view, group, parts, (part) => part.answers[0].minimumOffset);
  }
  const parts = state.parts.filter((one) => one.code || after[one.member] !== undefined);
  return onEach(view, group, parts, (part) => after[part.member]);
}

function onEach(view, group, parts, from) {
  return Promise.all(
    parts.map(async (part) => {
      if (part.code) return part;
      const request = { group, count: LIMIT, fromOffset: String(from(part)) };
      return { ...part, answers: [await view.on(part.member).call("DeadLetterService/ListDeadLetters", request)] };
    }),
  );
}

const keyOf = (one) => `${one.member} ${one.offset}`;

async function load(view, group, state, refresh) {
  const parts = await askLetters(view, group, state);
  const there = answered(parts);
  if (state.pages.after === undefined) state.parts = parts;
  const letters = rowsOf(there, (answer) => answer.deadLetters).sort(
    (one, other) => Number(one.storedAtMs) - Number(other.storedAtMs),
  );
  const chosen = h("span", { class: "note", role: "status" });
  const told = () => replace(chosen, `${state.chosen.size} selected`);
  told();
  const next = nextOf(there);
  const damaged = rowsOf(there, (answer) => answer.damaged ?? []).map((one) => ({
    ...one,
    of: isMany(parts) ? one.member : "",
  }));
  return [
    missingParts(parts),
    passedOver(damaged, "The command says, once the broker is stopped, what it takes to give one up."),
    facts([
      ["Kept", count(sumOf(state.parts, (one) => Number(one.maximumOffset) - Number(one.minimumOffset)))],
      ["Never sent again", count(sumOf(state.parts, (one) => Number(one.maximumOffset) - Number(one.nextOffset)))],
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
            state.isAll = !state.isAll;
            state.pages.restart();
            refresh();
          },
        },
        state.isAll ? "Show only those never sent again" : "Also show those sent again",
      ),
      h(
        "button",
        {
          type: "button",
          class: "quiet",
          onclick: () => {
            for (const one of letters) state.chosen.set(keyOf(one), [one.member, one.offset]);
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
    lettersTable(group, letters, parts, state.chosen, told),
    state.pages.bar({ next, refresh, extra: letters.length > 0 && exportButtons(`dead-letters-${group}`, letters) }),
  ];
}

// The offset behind the last letter of each member that has more; null where none has.
function nextOf(parts) {
  const next = {};
  for (const { member, answers } of parts) {
    const seen = [...answers[0].deadLetters, ...(answers[0].damaged ?? [])].map((one) => Number(one.offset));
    const behind = Math.max(...seen) + 1;
    if (seen.length && behind < Number(answers[0].maximumOffset)) next[member] = behind;
  }
  return Object.keys(next).length ? next : null;
}

function lettersTable(group, letters, parts, chosen, told) {
  return table(
    `Dead letters of ${group}`,
    [
      {
        title: "Choose",
        cell: (one) => {
          const box = h("input", {
            type: "checkbox",
            "aria-label": `select the dead letter at offset ${one.offset}${isMany(parts) ? ` of ${one.member}` : ""}`,
            onchange: () => {
              if (box.checked) chosen.set(keyOf(one), [one.member, one.offset]);
              else chosen.delete(keyOf(one));
              told();
            },
          });
          box.checked = chosen.has(keyOf(one));
          return box;
        },
      },
      { title: "Offset", kind: "number", cell: (one) => messageLink(`%DLQ%${group}`, 0, one.offset, one.offset, one.member) },
      { title: "Stored", cell: (one) => age(one.storedAtMs) },
      memberColumn(parts),
      { title: "Came from", cell: (one) => (one.topic ? topicLink(one.topic) : unknown("not in the record")) },
      { title: "Id", kind: "wide", less: true, cell: (one) => h("span", { class: "mono" }, one.messageId) },
      { title: "Tag", less: true, cell: (one) => one.tag || h("span", { class: "none" }, "none") },
      {
        title: "Keys",
        cell: (one) =>
          one.keys?.length
            ? one.keys.map((key) => [link(["trace"], key, { topic: one.topic, key }), " "])
            : h("span", { class: "none" }, "none"),
      },
      { title: "Attempts", kind: "number", less: true, cell: (one) => count(one.attempts) },
      {
        title: "State",
        cell: (one) => (one.wasResent ? badge("good", "sent again") : none("never sent again")),
      },
    ].filter(Boolean),
    letters,
    { empty: "There are none.", lines: true },
  );
}

// What is chosen, by member.
function chosenBy(chosen) {
  const offsets = new Map();
  for (const [member, offset] of chosen.values()) offsets.set(member, [...(offsets.get(member) ?? []), offset]);
  return [...offsets];
}

async function resendChosen(view, group, state, place, refresh) {
  if (!state.chosen.size) return "Select some first.";
  if (state.chosen.size > CHOSEN_MAX) return `At most ${CHOSEN_MAX} can be selected at a time.`;
  const works = chosenBy(state.chosen);
  const dry = await Promise.all(
    works.map(([member, offsets]) =>
      view.on(member).call("DeadLetterService/ResendDeadLetters", { group, offsets, dryRun: true }),
    ),
  );
  const resent = dry.reduce((sum, one) => sum + Number(one.resent), 0);
  const refused = dry.flatMap((answer, at) =>
    (answer.refused ?? []).map((one) =>
      h("li", null, works.length > 1 && `${works[at][0]}: `, `offset ${one.offset}: ${one.reason}`),
    ),
  );
  const jobs = await confirm({
    title: "Send the selected dead letters again?",
    label: `Send ${resent}`,
    body: [
      h("p", null, count(resent), ` would be sent to ${group}, once each.`),
      refused.length > 0 && [h("p", null, "Those stay where they are:"), h("ul", null, refused)],
    ],
    act: () =>
      Promise.all(works.map(([member, offsets]) => begun(named(view, state.parts, member), { group, offsets }))),
  });
  if (!jobs) return null;
  state.chosen.clear();
  return follow(jobs, place, refresh);
}

async function resendAll(view, group, place, refresh) {
  const parts = answered(await view.callMembers("DeadLetterService/ListDeadLetters", { group, count: 1 }));
  const counted = [];
  for (const { member } of parts)
    counted.push(await runJob(named(view, parts, member), { resendDeadLetters: { group } }, { dryRun: true, place }));
  const failed = counted.find((one) => one.state !== "done");
  if (failed) return `the dry run is ${failed.state}`;
  const jobs = await confirm({
    title: "Send all dead letters again?",
    label: "Send all",
    body: [
      h("p", null, `Would be done for ${group}:`),
      counted.map((one, at) => h("p", null, parts.length > 1 && `${parts[at].member}: `, countsText(one.counts))),
    ],
    act: () => Promise.all(parts.map(({ member }) => begun(named(view, parts, member), { group }))),
  });
  if (!jobs) return null;
  return follow(jobs, place, refresh);
}

const named = (view, parts, member) => view.on(member, isMany(parts) ? member : "");

async function begun(its, work) {
  return { its, job: await beginJob(its, { resendDeadLetters: work }) };
}

// Shows the jobs, one of each member, until all have ended.
async function follow(jobs, place, refresh) {
  place.replaceChildren();
  const ended = await Promise.all(
    jobs.map(({ its, job }) => new Promise((resolve) => place.append(followJob(its, job, resolve)))),
  );
  refresh();
  const states = [...new Set(ended.map((one) => one.state))];
  return jobs.length === 1 ? `the job is ${states[0]}` : `${jobs.length} jobs are ${states.join(", ")}`;
}

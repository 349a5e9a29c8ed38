// Messages that wait for their time, and transactions that wait for their producer's word.
import { h } from "./dom.js";
import { age, badge, count, duration, durationText, exact, unknown } from "./format.js";
import { topicLink } from "./links.js";
import { answered, memberColumn, missingParts, rowsOf, sumOf } from "./members.js";
import { facts, table } from "./table.js";
import { section } from "./view.js";

const REFRESH_MS = 10000;
const LIMIT = 50;

export async function show(view) {
  view.begin("Pending", {
    lead: "Timers are delayed messages that are not due yet; transactions are not committed or rolled back yet.",
  });
  let answer = null;
  const now = () => {
    answer ??= view.callMembers("StorageService/ListPending", { limit: LIMIT });
    return answer;
  };
  const sections = [
    section(view, "How many", async () => {
      const parts = await now();
      return [missingParts(parts), figures(together(answered(parts)))];
    }),
    section(view, "Timers, the next one first", async () => timers(await now())),
    section(view, "Transactions, the oldest first", async () => transactions(await now())),
  ];
  view.add(...sections);
  view.every(REFRESH_MS, () => {
    answer = null;
    for (const one of sections) one.refresh();
  });
}

// The figures of all members together: the latest of all is told.
function together(parts) {
  const its = parts.map((one) => one.answers[0]);
  const due = its[0].due.map((bucket) => ({
    withinMs: bucket.withinMs,
    timers: sumOf(parts, (one) => one.due.find((other) => other.withinMs === bucket.withinMs)?.timers),
  }));
  return {
    timers: sumOf(parts, (one) => one.timers),
    transactions: sumOf(parts, (one) => one.transactions),
    lateMs: Math.max(...its.map((one) => Number(one.lateMs))),
    due,
    dueLookedAt: sumOf(parts, (one) => one.dueLookedAt),
  };
}

function figures(it) {
  const counting = "still being counted after a start";
  const late = Number(it.lateMs);
  return [
    facts([
      ["Timers", count(it.timers, counting)],
      ["Transactions", count(it.transactions, counting)],
      [
        "Late",
        late > 1000
          ? badge("warn", durationText(late), "what was due first was that late when it was looked for")
          : badge("good", "not late"),
      ],
    ]),
    table(
      "Timers by when they are due",
      [
        { title: "Due within", cell: (one) => duration(one.withinMs) },
        { title: "Timers", kind: "number", cell: (one) => count(one.timers) },
      ],
      it.due,
      { empty: "Due times are not available.", narrow: true },
    ),
    h(
      "p",
      { class: "note" },
      "Each row counts only messages that are not in the rows above, among the ",
      count(it.dueLookedAt),
      " timers that are due first.",
    ),
  ];
}

const topicOf = (one) => (one.topic ? topicLink(one.topic) : unknown("the record cannot be read"));
const idOf = (one) =>
  one.messageId ? h("span", { class: "mono" }, one.messageId) : unknown("the record cannot be read");

const by = (name) => (one, other) => Number(one[name]) - Number(other[name]);

function timers(parts) {
  const rows = rowsOf(parts, (answer) => answer.firstTimers).sort(by("dueAtMs")).slice(0, LIMIT);
  return table(
    "Timers",
    [
      { title: "Due", cell: (one) => age(one.dueAtMs) },
      { title: "Topic", cell: topicOf },
      { title: "Id", kind: "wide", less: true, cell: idOf },
      memberColumn(parts),
      { title: "Location in the log", kind: "number", less: true, cell: (one) => exact(one.physicalOffset) },
    ].filter(Boolean),
    rows,
    { empty: "No delayed messages are pending.", lines: true },
  );
}

function transactions(parts) {
  const rows = rowsOf(parts, (answer) => answer.firstTransactions).sort(by("storedAtMs")).slice(0, LIMIT);
  return table(
    "Transactions",
    [
      { title: "Stored", cell: (one) => age(one.storedAtMs) },
      { title: "Topic", cell: topicOf },
      { title: "Id", kind: "wide", less: true, cell: idOf },
      memberColumn(parts),
      {
        title: "Checks sent",
        kind: "number",
        less: true,
        cell: (one) => count(one.checks, "not among the next transactions to be checked"),
      },
      { title: "Next check", less: true, cell: (one) => age(one.nextCheckAtMs) },
    ].filter(Boolean),
    rows,
    { empty: "No pending transactions.", lines: true },
  );
}

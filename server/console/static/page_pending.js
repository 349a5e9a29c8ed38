// Messages that wait for their time, and transactions that wait for their producer's word.
import { h } from "./dom.js";
import { age, badge, count, duration, durationText, exact, unknown } from "./format.js";
import { topicLink } from "./links.js";
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
    answer ??= view.call("StorageService/ListPending", { limit: LIMIT });
    return answer;
  };
  const sections = [
    section(view, "How many", async () => figures(await now())),
    section(view, "Timers, the next one first", async () => timers(await now())),
    section(view, "Transactions, the oldest first", async () => transactions(await now())),
  ];
  view.add(...sections);
  view.every(REFRESH_MS, () => {
    answer = null;
    for (const one of sections) one.refresh();
  });
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

function timers(it) {
  return table(
    "Timers",
    [
      { title: "Topic", cell: topicOf },
      { title: "Id", kind: "wide", cell: idOf },
      { title: "Due", cell: (one) => age(one.dueAtMs) },
      { title: "Location in the log", kind: "number", less: true, cell: (one) => exact(one.physicalOffset) },
    ],
    it.firstTimers,
    { empty: "No delayed messages are pending." },
  );
}

function transactions(it) {
  return table(
    "Transactions",
    [
      { title: "Topic", cell: topicOf },
      { title: "Id", kind: "wide", cell: idOf },
      { title: "Stored", cell: (one) => age(one.storedAtMs) },
      {
        title: "Checks sent",
        kind: "number",
        cell: (one) => count(one.checks, "not among the next transactions to be checked"),
      },
      { title: "Next check", cell: (one) => age(one.nextCheckAtMs) },
    ],
    it.firstTransactions,
    { empty: "No pending transactions." },
  );
}

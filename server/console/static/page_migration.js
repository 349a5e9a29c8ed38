// From queue files to RocksDB and back: where it stands, and the next safe step.
import { confirm } from "./dialog.js";
import { announce, h, replace } from "./dom.js";
import { badge, bytes, count, counted, isKnown, time } from "./format.js";
import { addMemberTabs } from "./members.js";
import { facts, table } from "./table.js";
import { panel, section } from "./view.js";
import { progressBar, workButton } from "./work.js";

const ROUND_MS = 3000;
const PHASES = [
  ["file", "files alone are written and read"],
  ["double_write", "RocksDB is written, too"],
  ["backfilling", "what came before is brought into RocksDB"],
  ["verified", "both were compared"],
  ["reading_rocksdb", "RocksDB is read; files are still written"],
  ["rocksdb", "RocksDB alone"],
];
const words = (phase) => phase.replaceAll("_", " ");

export async function show(view) {
  view.begin("Migration", {
    lead: "Consume queues move from files to RocksDB while the broker serves. Every step except the last can be taken back.",
  });
  const members = h("div");
  view.add(members);
  addMemberTabs(view, ["migration"], members);
  const buttons = h("div", { class: "pager" });
  const outcome = h("div", { role: "status" });
  let shownPhase = null;
  const state = section(
    view,
    "Phase",
    async () => {
      const it = await view.call("MigrationService/GetMigration");
      const key = [
        it.phase,
        it.advanceTo,
        it.advanceRefused,
        it.comparisonFirst,
        it.rollbackTo,
        it.rollbackRefused,
      ].join("|");
      // Buttons stay as they are while nothing has changed: they may be telling how a step goes.
      if (key !== shownPhase && !buttons.querySelector("button[data-busy]")) {
        shownPhase = key;
        replace(
          buttons,
          steps(view, it, () => state.refresh(), outcome),
        );
      }
      return phaseView(it);
    },
    { everyMs: ROUND_MS },
  );
  view.add(state, panel("Next step", buttons, outcome));
}

function phaseView(it) {
  const at = PHASES.findIndex(([phase]) => phase === it.phase);
  // A store that began with RocksDB has taken no step.
  const passed = () => (it.steps.length ? badge("good", "done") : badge("idle", "not needed"));
  return [
    h(
      "ol",
      { class: "steps" },
      PHASES.map(([phase, meaning], index) =>
        h(
          "li",
          { "aria-current": index === at ? "step" : null },
          words(phase),
          " ",
          index < at ? passed() : index === at ? badge("info", "now") : badge("idle", "to come"),
          h("small", null, meaning),
        ),
      ),
    ),
    it.problem && h("p", { class: "notice bad" }, "✖ Held up: ", it.problem),
    facts([
      ["Read from", words(it.read)],
      ["Offsets are assigned by", words(it.assign)],
      [
        "Lag of the second store",
        at === 0 || at === PHASES.length - 1
          ? h("span", { class: "none" }, "there is one store alone")
          : bytes(it.lagBytes),
      ],
      ["Leftovers of a step", it.removing ? "is being removed" : "nothing to remove"],
      it.comparing && [
        "Compared so far",
        [count(it.comparing.queues), " queues, ", count(it.comparing.units), " units"],
      ],
    ]),
    it.backfill &&
      at >= 2 &&
      h(
        "p",
        null,
        "Copied: ",
        progressBar(
          Number(it.backfill.done) - Number(it.backfill.logBegin),
          Number(it.backfill.end) - Number(it.backfill.logBegin),
          "backfill",
        ),
      ),
    it.report && [h("h3", null, "The last comparison"), report(it.report)],
    it.atStart && [h("h3", null, "What the start found"), report(it.atStart)],
    h("h3", null, "Steps taken"),
    table(
      "Steps taken",
      [
        { title: "When", cell: (one) => time(one.atMs) },
        { title: "From", cell: (one) => words(one.from) },
        { title: "To", cell: (one) => words(one.to) },
        { title: "Asked by", cell: (one) => one.askedBy || h("span", { class: "none" }, "nobody said") },
      ],
      it.steps,
      { empty: "None yet." },
    ),
  ];
}

function report(it) {
  const kinds = Object.entries(it.differences ?? {});
  const sum = kinds.reduce((all, [, value]) => all + Number(value), 0);
  return [
    facts([
      ["Verdict", sum ? badge("bad", counted(sum, "mismatch", "mismatches")) : badge("good", "no mismatch")],
      ["Ended", Number(it.endedAtMs) ? time(it.endedAtMs) : "not yet"],
      ["Asked by", it.askedBy || "the broker"],
      ["Queues", count(it.queues)],
      ["Units", count(it.units)],
      ...kinds.map(([kind, value]) => [words(kind), count(value)]),
    ]),
    it.doubt && h("p", { class: "notice warn" }, "▲ In doubt: ", it.doubt),
    (it.first ?? []).length > 0 &&
      table(
        "First mismatches",
        [
          { title: "Kind", cell: (one) => words(one.kind) },
          { title: "Topic", cell: (one) => one.topic },
          { title: "Queue", kind: "number", cell: (one) => String(one.queue) },
          {
            title: "Offset",
            kind: "number",
            cell: (one) =>
              isKnown(one.queueOffset) ? count(one.queueOffset) : h("span", { class: "none" }, "the whole queue"),
          },
          { title: "What", kind: "wide", cell: (one) => one.text },
        ],
        it.first,
      ),
  ];
}

function steps(view, it, refresh, outcome) {
  // The buttons are others once a step is taken: how it ended stays below them.
  const step = async (work) => {
    replace(outcome);
    const told = await work;
    if (told === null) return null;
    replace(outcome, told instanceof Node ? told : h("p", { class: "notice good" }, `✓ ${told}`));
    return "";
  };
  const isLast = it.advanceTo === "rocksdb";
  return [
    it.advanceTo &&
      workButton(`Go on to ${words(it.advanceTo)}`, (tell) => step(advance(view, it, isLast, tell, refresh)), {
        className: isLast ? "danger" : "primary",
      }),
    it.advanceRefused && h("p", { class: "notice idle" }, "○ No step forward: ", it.advanceRefused),
    it.comparisonFirst && h("p", { class: "notice info" }, "● The queues are compared first: ", it.comparisonFirst),
    it.rollbackTo &&
      workButton(`Roll back to ${words(it.rollbackTo)}`, () => step(rollBack(view, it, refresh)), {
        className: "danger",
      }),
    it.rollbackRefused && h("p", { class: "notice idle" }, "○ No step back: ", it.rollbackRefused),
  ].filter(Boolean);
}

async function advance(view, it, isLast, tell, refresh) {
  let answer = null;
  const done = await confirm({
    title: `Go on to ${words(it.advanceTo)}?`,
    label: "Take the step",
    danger: isLast,
    mustType: isLast ? "rocksdb" : null,
    body: [
      it.comparisonFirst && h("p", null, "The queues are compared first, which takes its time: ", it.comparisonFirst),
      isLast
        ? h("p", null, "The files are removed. From then on the way back is offline.")
        : h("p", null, "It can be taken back."),
    ],
    act: async () => {
      answer = await view.call("MigrationService/AdvanceMigration", { askedBy: view.askedBy });
    },
  });
  if (!done) return null;
  refresh();
  if (answer.phase) return `now in ${words(answer.phase)}`;
  return untilStepped(view, it.phase, tell, refresh);
}

// A comparison goes before the step: it is followed until the phase has changed or the queues differ.
async function untilStepped(view, before, tell, refresh) {
  for (;;) {
    await new Promise((resolve) => {
      setTimeout(resolve, 1000);
    });
    const it = await view.call("MigrationService/GetMigration");
    if (it.phase !== before) {
      refresh();
      announce(`The migration is now in ${words(it.phase)}.`);
      return `now in ${words(it.phase)}`;
    }
    if (!it.comparing) {
      const sum = Object.values(it.report?.differences ?? {}).reduce((all, value) => all + Number(value), 0);
      refresh();
      return sum
        ? h("p", { class: "notice bad" }, `✖ the step was not taken: ${counted(sum, "mismatch", "mismatches")}`)
        : h("p", { class: "notice info" }, "● the comparison has ended; take the step now");
    }
    tell("comparing: ", count(it.comparing.queues), " queues, ", count(it.comparing.units), " entries …");
  }
}

async function rollBack(view, it, refresh) {
  let answer = null;
  const done = await confirm({
    title: `Roll back to ${words(it.rollbackTo)}?`,
    label: "Roll back",
    danger: true,
    body: "One step back. No message is lost; work of the later phase may have to be repeated.",
    act: async () => {
      answer = await view.call("MigrationService/RollBackMigration", { askedBy: view.askedBy });
    },
  });
  refresh();
  return done ? `now in ${words(answer.phase)}` : null;
}

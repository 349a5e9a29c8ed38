// Long work: jobs with their progress, and verifications of the store.
import { confirm, field, valuesOf } from "./dialog.js";
import { announce, h, replace } from "./dom.js";
import { age, count, isKnown, none } from "./format.js";
import { link } from "./links.js";
import { answered, isMany, memberColumn, missingParts, rowsOf } from "./members.js";
import { facts, table } from "./table.js";
import { panel, section } from "./view.js";
import { countsText, followJob, isOpen, progressBar, stateBadge, workButton } from "./work.js";

const ROUND_MS = 2000;

export async function show(view) {
  view.begin("Jobs", {
    lead: "Work that runs in the broker, one job after the other, even when this page is closed.",
  });
  const open = h("div");
  const followed = new Set();
  const list = section(
    view,
    "Jobs",
    async () => {
      const parts = await view.callMembers("JobService/ListJobs");
      const jobs = newestFirst(rowsOf(answered(parts), (answer) => answer.jobs));
      const key = (one) => `${one.member} ${one.id}`;
      for (const job of jobs.filter((one) => isOpen(one) && one.kind !== "verify" && !followed.has(key(one)))) {
        followed.add(key(job));
        open.append(
          h(
            "div",
            { class: "panel" },
            followJob(view.on(job.member, isMany(parts) ? job.member : ""), job, () => list.refresh()),
          ),
        );
      }
      return [missingParts(parts), jobsTable(view, parts, jobs)];
    },
    { everyMs: ROUND_MS },
  );
  const verifications = section(view, "Verifications", () => verificationsView(view), { everyMs: ROUND_MS });
  view.add(open, list, verifications, begin(view, verifications));
}

// Ids of jobs and verifications are the times when they were begun.
const newestFirst = (rows) => rows.sort((one, other) => Number(other.id) - Number(one.id));

function jobsTable(view, parts, jobs) {
  return table(
    "Jobs, the newest first",
    [
      {
        title: "Job",
        cell: (one) =>
          link(["jobs", one.id], `${one.kind}${one.dryRun ? ", dry run" : ""}`, { member: view.on(one.member).member }),
      },
      memberColumn(parts),
      { title: "State", cell: (one) => stateBadge(one.state) },
      { title: "Begun", cell: (one) => age(one.id) },
      { title: "Asked by", cell: (one) => one.askedBy || h("span", { class: "none" }, "nobody said") },
      { title: "About", kind: "wide", cell: aboutText },
      { title: "Progress", cell: (one) => progressBar(one.done, one.total, `progress of ${one.kind}`) },
      { title: "Counted", cell: (one) => countsText(one.counts) },
      { title: "Ended", cell: (one) => (isKnown(one.endedAtMs) ? age(one.endedAtMs) : "not yet") },
      { title: "Remark", kind: "wide", cell: (one) => one.remark || none("") },
    ].filter(Boolean),
    jobs,
    { empty: "No jobs." },
  );
}

export function aboutText(job) {
  const it = job.resetOffset ?? job.resendDeadLetters ?? job.resendMessages;
  if (!it) return job.kind === "verify" ? "the store" : "";
  const parts = [
    it.group && `group ${it.group}`,
    it.topic && `topic ${it.topic}`,
    it.toTopic && `to ${it.toTopic}`,
    isKnown(it.queue) && `queue ${it.queue}`,
    it.key && `key ${it.key}`,
    it.offsets?.length && `${it.offsets.length} offsets`,
  ];
  return parts.filter(Boolean).join(", ");
}

// --- verifications ---

// The broker reads its whole log in sweeps (verification.interval_ms).
const isSweep = (one) => one.askedBy === "the broker";

async function verificationsView(view) {
  const parts = await view.callMembers("VerificationService/ListVerifications");
  const verifications = newestFirst(rowsOf(answered(parts), (answer) => answer.verifications));
  const running = verifications.filter((one) => one.state === "running");
  const ended = verifications.filter((one) => one.state !== "running");
  const newest = ended.find((one) => !isSweep(one)) ?? ended[0];
  return [
    missingParts(parts),
    running.map((one) =>
      h(
        "div",
        { class: "pager" },
        stateBadge("running"),
        isMany(parts) && h("strong", null, one.member),
        h("span", null, one.progress?.phase ?? "begins"),
        progressBar(one.progress?.done ?? 0, one.progress?.total, "progress of the verification"),
        isSweep(one)
          ? h("span", { class: "none" }, "a sweep of the broker over its log")
          : workButton("Cancel", async () => {
              await view.on(one.member).call("VerificationService/CancelVerification", { id: one.id });
              return "cancelled";
            }),
      ),
    ),
    table(
      "Verifications, the newest first",
      [
        { title: "Begun", cell: (one) => age(one.id) },
        memberColumn(parts),
        { title: "State", cell: (one) => stateBadge(one.state) },
        { title: "Asked by", cell: (one) => one.askedBy || h("span", { class: "none" }, "nobody said") },
        {
          title: "Checked",
          kind: "number",
          cell: (one) =>
            one.checks.length
              ? count(one.checks.reduce((sum, check) => sum + Number(check.checked), 0))
              : h("span", { class: "none" }, "nothing yet"),
        },
        {
          title: "Differences",
          kind: "number",
          cell: (one) =>
            one.checks.length
              ? count(one.checks.reduce((sum, check) => sum + Number(check.differences), 0))
              : h("span", { class: "none" }, "nothing yet"),
        },
        { title: "Ended", cell: (one) => (isKnown(one.endedAtMs) ? age(one.endedAtMs) : "not yet") },
        { title: "Remark", kind: "wide", cell: (one) => one.remark || none("") },
      ].filter(Boolean),
      verifications,
      { empty: "None." },
    ),
    newest && report(newest),
  ];
}

function report(one) {
  return h(
    "details",
    { "data-fold": "report" },
    h("summary", null, "What the newest one that has ended found"),
    facts([
      ["Log start", count(one.logBegin)],
      ["up to", count(one.logEnd)],
    ]),
    table(
      "Checks",
      [
        { title: "Check", cell: (check) => check.name },
        { title: "Checked", kind: "number", cell: (check) => count(check.checked) },
        { title: "Differences", kind: "number", cell: (check) => count(check.differences) },
      ],
      one.checks,
      { empty: "No checks were made." },
    ),
    Object.keys(one.notes ?? {}).length > 0 && [
      h("h3", null, "Met, and as it should be"),
      facts(Object.entries(one.notes).map(([name, value]) => [name, count(value)])),
    ],
    (one.first ?? []).length > 0 && [
      h("h3", null, "First differences"),
      table(
        "First differences",
        [
          { title: "Check", cell: (it) => it.check },
          { title: "What", kind: "wide", cell: (it) => it.text },
        ],
        one.first,
      ),
    ],
  );
}

function begin(view, list) {
  const said = h("div", { role: "status" });
  const form = h(
    "form",
    {
      class: "filters",
      onsubmit: async (event) => {
        event.preventDefault();
        const { busyPercent: typed, member } = valuesOf(form);
        const busyPercent = Number(typed);
        const its = member ? view.on(member) : view;
        let begun = null;
        const done = await confirm({
          title: member ? `Verify the store of ${member}?` : "Verify the store?",
          label: "Begin",
          body: `The whole log is read in the background, with at most ${busyPercent} percent of one processor core. You can cancel this at any time.`,
          act: async () => {
            begun = await its.call("VerificationService/BeginVerification", { askedBy: view.askedBy, busyPercent });
          },
        });
        if (!done) return;
        list.refresh();
        await watch(its, begun, said);
        list.refresh();
      },
    },
    field({
      name: "busyPercent",
      label: "Maximum percent of a core",
      type: "number",
      min: "1",
      max: "100",
      value: "25",
      required: true,
    }),
    h("button", { type: "submit" }, "Verify the store"),
  );
  offerMembers(view, form);
  return panel(
    "Verify the store",
    h("p", { class: "lead" }, "Reads the whole log and holds the queues, offsets and indexes against it. Nothing is changed."),
    form,
    said,
  );
}

// In a cluster, whose store it is; the one of the broker that is asked comes first.
async function offerMembers(view, form) {
  try {
    const parts = await view.callMembers("AdminService/GetBroker");
    if (!isMany(parts)) return;
    const there = parts.filter((one) => !one.code).sort((one, other) => other.isSelf - one.isSelf);
    form.prepend(field({ name: "member", label: "Member", options: there.map((one) => [one.member, one.member]) }));
  } catch {
    // who may not look at the cluster verifies the store of the broker that is asked
  }
}

// Tells how it goes, until it has ended.
async function watch(view, begun, said) {
  let one = begun;
  while (one.state === "running" && !view.signal.aborted) {
    replace(
      said,
      `${one.progress?.phase ?? "begins"} … `,
      progressBar(one.progress?.done ?? 0, one.progress?.total, "progress of the verification"),
    );
    await new Promise((resolve) => {
      setTimeout(resolve, ROUND_MS);
    });
    one = await view.call("VerificationService/GetVerification", { id: begun.id });
  }
  replace(said, stateBadge(one.state), " ", one.remark ?? "");
  announce(`The verification has ended: ${one.state}.`);
}

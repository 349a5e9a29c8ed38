// Is it stuck, where, since when: concerns first, then members, the last hour, and where the time of calls goes.
import { Chart } from "./chart.js";
import { h } from "./dom.js";
import { age, badge, bytes, count, counted, countText, duration, exact, isKnown, percent, rate, time, unknown } from "./format.js";
import { link } from "./links.js";
import { SLOW_SECONDS, stagesTable } from "./stages.js";
import { facts, table } from "./table.js";
import { section } from "./view.js";

const REFRESH_MS = 10000;
const HISTORY_MS = 3600000;

// Charts by what they show: [title, series with their labels, whether it is shown at once]. A series that none of them
// names gets a chart of its own.
const CHARTS = [
  ["Messages per second", { sent_per_second: "sent", received_per_second: "received" }, true],
  ["Waiting messages", { ready_messages: "ready", in_flight_messages: "in flight" }, true],
  ["Age of the oldest waiting message", { lag_seconds: "oldest" }, true],
  [
    "Failing deliveries per second",
    { redelivered_per_second: "redelivered", dead_letters_per_second: "dead letters" },
    true,
  ],
  ["p99 of calls", { send_p99_ms: "send" }, true],
  ["Disk and processor", { disk_used_percent: "disk used", cpu_percent: "processor, of one core" }, true],
  [
    "Bytes per second",
    { sent_bytes_per_second: "sent", received_bytes_per_second: "received", log_bytes_per_second: "log" },
  ],
  [
    "p99 of the stages of sends",
    {
      send_check_p99_ms: "check",
      send_gather_p99_ms: "gather",
      send_append_p99_ms: "append",
      send_flush_p99_ms: "flush",
      send_dispatch_p99_ms: "dispatch",
      send_wake_p99_ms: "wake",
      send_answer_p99_ms: "answer",
    },
  ],
  [
    "p99 of the stages of receives",
    {
      receive_wait_p99_ms: "wait",
      receive_take_p99_ms: "take",
      receive_read_p99_ms: "read",
      receive_write_p99_ms: "write",
      receive_answer_p99_ms: "answer",
    },
  ],
  ["Pending", { timers: "timers", transactions: "transactions" }],
  ["Connections and clients", { connections: "connections", clients: "clients" }],
  [
    "Not written yet",
    { dispatch_lag_bytes: "consume queues behind the log", migration_lag_bytes: "second store lags behind the first" },
  ],
  ["Lite topics", { lite_topics: "lite topics" }],
  ["Memory", { resident_bytes: "resident" }],
  ["Event loop delay", { loop_late_seconds: "maximum" }],
];

export async function show(view) {
  view.begin("Overview");
  const state = { before: null, now: null };
  const head = section(view, "Concerns", async () => concerns(await overviews(view, state)));
  const members = section(view, "Members", async () => membersTable(await overviews(view, state)));
  const totals = section(view, "This broker", async () => totalsFacts(await overviews(view, state)));
  const stages = section(view, "Time by stage", async () => stagesTable(await overviews(view, state), state), {
    lead: `Stages of sends and receives: first since the start, then since the previous refresh. Slow: p99 above ${SLOW_SECONDS} s.`,
  });
  view.add(
    head,
    members,
    totals,
    section(view, "The last hour", () => history(view)),
    stages,
  );
  view.every(REFRESH_MS, () => {
    state.now = null;
    for (const one of [head, members, totals, stages]) one.refresh();
  });
}

// One call for all sections of a round.
function overviews(view, state) {
  state.now ??= view.call("OverviewService/ListOverviews").then((answer) => {
    const own = answer.members.find((one) => one.isSelf) ?? answer.members[0];
    if (state.last && state.last.atMs !== own?.overview?.atMs) state.before = state.last;
    state.last = own?.overview ?? null;
    return { members: answer.members, own };
  });
  return state.now;
}

function concerns({ members }) {
  const rows = members.flatMap((one) => {
    if (!one.overview) return [{ member: one, text: one.problem || "no answer", isBad: true }];
    const readiness =
      one.overview.readiness === "ready"
        ? []
        : [{ member: one, text: `not ready: ${one.overview.readiness}`, isBad: true }];
    return [...readiness, ...concernsOf(one)];
  });
  if (!rows.length) return h("p", { class: "notice good" }, "✓ All clear.");
  return h(
    "ul",
    { class: "concern-list" },
    rows.map((row) =>
      h(
        "li",
        { class: `notice ${row.isBad ? "bad" : "warn"}` },
        `${row.isBad ? "✖" : "▲"} `,
        members.length > 1 && h("strong", null, `${row.member.name}: `),
        row.text,
        Number(row.sinceMs) > 0 ? [" ", h("span", { class: "none" }, "since ", time(row.sinceMs))] : null,
        row.command ? h("p", { class: "concern-command" }, h("code", null, row.command)) : null,
        row.page && row.member.isSelf ? h("p", null, pageLink(row.page)) : null,
      ),
    ),
  );
}

function pageLink(page) {
  const parts = page.split("/").map((part) => decodeURIComponent(part));
  return link(parts, parts.length > 1 ? `Open ${parts.at(-1)}` : `Open the page ${parts[0]}`);
}

// A member of an older version tells texts alone.
function concernsOf(member) {
  const { concernDetails = [], concerns: texts = [] } = member.overview;
  if (!concernDetails.length) return texts.map((text) => ({ member, text, isBad: false }));
  return concernDetails.map((one) => ({ ...one, member, isBad: one.severity === "CONCERN_SEVERITY_FAULT" }));
}

function stateOf(member) {
  if (!member.isReachable && !member.isSelf) return badge("bad", "not reachable");
  if (member.overview && member.overview.readiness !== "ready")
    return badge("bad", "not ready", member.overview.readiness);
  return (
    { active: badge("good", "active"), alone: badge("good", "alone"), draining: badge("warn", "draining") }[
      member.state
    ] ?? badge("info", member.state)
  );
}

const why = (member) => member.problem || "the member did not answer";

function figure(member, show_) {
  return member.overview ? show_(member.overview) : unknown(why(member));
}

function membersTable({ members }) {
  return table(
    "Members of the cluster",
    [
      {
        title: "Member",
        cell: (one) => [
          h("strong", null, one.name),
          one.isSelf && members.length > 1 && h("small", null, " (this one)"),
        ],
      },
      { title: "Role", cell: stateOf },
      { title: "Version", cell: (one) => one.version || unknown(why(one)) },
      { title: "In", kind: "number", cell: (one) => figure(one, (it) => rate(it.sentPerSecond)) },
      { title: "Out", kind: "number", cell: (one) => figure(one, (it) => rate(it.receivedPerSecond)) },
      { title: "Disk used", kind: "number", cell: (one) => figure(one, diskUsed) },
      { title: "Lag", kind: "number", cell: (one) => figure(one, lag) },
      { title: "Sent today", kind: "number", cell: (one) => figure(one, (it) => today(it.sentToday, it.sent)) },
      {
        title: "Received today",
        kind: "number",
        cell: (one) => figure(one, (it) => today(it.receivedToday, it.received)),
      },
      {
        title: "Sent yesterday",
        kind: "number",
        cell: (one) => figure(one, (it) => count(it.sentYesterday, partOfDay)),
      },
      {
        title: "Received yesterday",
        kind: "number",
        cell: (one) => figure(one, (it) => count(it.receivedYesterday, partOfDay)),
      },
    ],
    members,
  );
}

const partOfDay = "the broker did not run the whole day";

// A broker that was started today knows what came since, which is not all of the day.
function today(known, sinceStart) {
  if (isKnown(known)) return count(known);
  return h("span", { class: "figure", title: `${exact(sinceStart)} since the start; ${partOfDay}` }, "at least ", countText(sinceStart));
}

function diskUsed(overview) {
  const total = Number(overview.diskTotal);
  return total > 0
    ? percent(((total - Number(overview.diskFree)) / total) * 100)
    : unknown("the size of the disk is unknown");
}

// Before what waits in all groups together, some of which may not be counted.
function atLeast(overview, value) {
  return isKnown(value) && !overview.lagIsWhole && "at least ";
}

function lag(overview) {
  if (!isKnown(overview.readyMessages) && !isKnown(overview.lagMs))
    return unknown("no group is in memory, or no group was counted yet");
  return [
    atLeast(overview, overview.readyMessages),
    count(overview.readyMessages),
    isKnown(overview.lagMs) && Number(overview.lagMs) > 0 && [", ", duration(overview.lagMs)],
  ];
}

function totalsFacts({ own }) {
  const it = own?.overview;
  if (!it) return h("p", { class: "notice bad" }, "✖ ", own?.problem || "The broker did not answer.");
  return facts(
    [
      ["Broker", `${it.broker.name} (${it.broker.cluster})`],
      ["Readiness", it.readiness === "ready" ? badge("good", "ready") : badge("bad", it.readiness)],
      ["Running since", time(it.broker.startedAtMs)],
      ["Durability", it.broker.durability],
      ["Address for clients", it.broker.advertisedAddress],
      ["Sent since the start", count(it.sent)],
      ["Received since the start", count(it.received)],
      ["Connections", count(it.connections)],
      ["Clients", link(["clients"], `${counted(it.producers, "producer")}, ${counted(it.consumers, "consumer")}`)],
      ["Topics", link(["topics"], count(it.topics))],
      ["Groups", link(["groups"], count(it.groups))],
      ["Lite topics", link(["lite"], count(it.liteTopics))],
      ["Ready messages", [atLeast(it, it.readyMessages), count(it.readyMessages)]],
      ["In flight", [atLeast(it, it.inFlightMessages), count(it.inFlightMessages)]],
      [
        "Oldest waiting for",
        it.lagIsWhole && Number(it.lagMs) === 0 ? "nothing waiting" : [atLeast(it, it.lagMs), duration(it.lagMs)],
      ],
      ["Timers", link(["pending"], count(it.timers))],
      ["Transactions", link(["pending"], count(it.transactions))],
      ["Open jobs", link(["jobs"], count(it.openJobs))],
      ["Log kept", bytes(it.logSize)],
      ["Oldest message", age(it.oldestStoredAtMs, "the log is empty, or its first record cannot be read")],
      ["Disk free", [bytes(it.diskFree), " of ", bytes(it.diskTotal)]],
      ["Consume queues", link(["migration"], (it.migrationPhase || "unknown").replaceAll("_", " "))],
      isKnown(it.migrationLagBytes) && ["Lag of the second store", bytes(it.migrationLagBytes)],
      ["Memory", bytes(it.process?.residentBytes)],
      ["Open files", count(it.process?.openFiles)],
      [
        "Event loop: largest delay",
        isKnown(it.process?.loopLateSeconds) ? duration(it.process.loopLateSeconds * 1000) : unknown(),
      ],
    ],
    "many",
  );
}

// --- charts ---

async function history(view) {
  const kept = { times: [], series: new Map() };
  const box = h("div", { class: "charts" });
  const others = h("div", { class: "charts" });
  const charts = new Map();
  const round = async () => {
    const answer = await view.call(
      "OverviewService/GetHistory",
      kept.times.length ? { afterMs: String(kept.times.at(-1)) } : {},
    );
    keep(kept, answer);
    for (const [title, labels, isFirst] of plans(kept)) {
      const names = Object.keys(labels);
      if (!charts.has(title)) {
        charts.set(title, new Chart(title, kept.series.get(names[0]).unit));
        (isFirst ? box : others).append(charts.get(title).element);
      }
      charts.get(title).update(
        kept.times,
        names.map((name) => ({ label: labels[name], values: kept.series.get(name).values })),
      );
    }
  };
  await round();
  view.every(REFRESH_MS, () => {
    round().catch(() => {});
  });
  return [box, h("details", { class: "more", "data-fold": "charts" }, h("summary", null, "More charts"), others)];
}

function keep(kept, { atMs, series }) {
  const fresh = atMs.map(Number);
  const begin = fresh.length ? fresh.at(-1) - HISTORY_MS : 0;
  const before = kept.times.length;
  kept.times.push(...fresh);
  for (const one of series) {
    if (!kept.series.has(one.name)) kept.series.set(one.name, { unit: one.unit, values: new Array(before).fill(NaN) });
    kept.series.get(one.name).values.push(...one.values.map(Number));
  }
  const gone = kept.times.findIndex((at) => at >= begin);
  if (gone > 0) kept.times.splice(0, gone);
  for (const { values } of kept.series.values()) {
    while (values.length < kept.times.length + Math.max(gone, 0)) values.push(NaN);
    if (gone > 0) values.splice(0, gone);
  }
}

function plans(kept) {
  const left = new Set(kept.series.keys());
  const there = CHARTS.map(([title, labels, isFirst]) => [
    title,
    Object.fromEntries(Object.entries(labels).filter(([name]) => left.delete(name))),
    isFirst,
  ]);
  const own = [...left].map((name) => [name.replaceAll("_", " "), { [name]: kept.series.get(name).unit }, false]);
  return [...there.filter(([, labels]) => Object.keys(labels).length), ...own];
}

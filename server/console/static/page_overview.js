// What needs attention, six figures with their last hour, and the rest folded.
import { h } from "./dom.js";
import { age, badge, bytes, count, counted, countText, duration, exact, isKnown, percent, rate, time, unknown } from "./format.js";
import { Hour, sparkline } from "./hour.js";
import { icon } from "./icons.js";
import { address, link } from "./links.js";
import { together } from "./pages.js";
import { facts, table } from "./table.js";
import { section } from "./view.js";
import { copyButton } from "./work.js";

const REFRESH_MS = 10000;
const SPARKS = ["sent_per_second", "received_per_second", "ready_messages", "lag_seconds", "send_p99_ms", "disk_used_percent"];

export async function show(view) {
  view.begin("Overview");
  const state = { now: null };
  const hour = new Hour(view, SPARKS);
  const past = () => hour.refresh().catch(() => hour);
  const parts = [
    section(view, "Concerns", async () => concerns(await overviews(view, state))),
    section(view, "Now", async () => figures(...(await Promise.all([overviews(view, state), past()]))), { bare: true }),
    section(view, "Members and totals", async () => membersTable(await overviews(view, state)), { folded: true }),
    section(view, "This broker", async () => totalsFacts(await overviews(view, state)), { folded: true }),
  ];
  const charts = async () => (await import("./hour_charts.js")).hourCharts(view);
  view.add(...parts, section(view, "The last hour in charts", charts, { folded: true, isLive: true }));
  overviews(view, state).then(
    ({ members }) => members.length > 1 && parts[2].unfold(),
    () => {},
  );
  view.every(REFRESH_MS, () => {
    state.now = null;
    for (const one of parts) one.refresh();
  });
}

// One call for all sections of a round.
function overviews(view, state) {
  state.now ??= view.call("OverviewService/ListOverviews").then(({ members }) => {
    const own = members.find((one) => one.isSelf) ?? members[0];
    if (own?.overview) {
      const detail = { overview: together(members), members: members.length };
      window.dispatchEvent(new CustomEvent("overview", { detail }));
    }
    return { members, own };
  });
  return state.now;
}

// --- figures ---

// The sum over all members that answered; undefined where one of them does not know.
function sum(members, name) {
  const known = members.filter((one) => one.overview).map((one) => one.overview[name]);
  return known.length && known.every(isKnown) ? known.reduce((all, one) => all + Number(one), 0) : undefined;
}

function figures({ members, own }, hour) {
  const it = own?.overview;
  if (!it) return h("p", { class: "notice bad" }, "✖ ", own?.problem || "The broker did not answer.");
  const there = members.filter((one) => one.overview);
  const isWhole = there.every((one) => one.overview.lagIsWhole);
  const most = (value) => isKnown(value) && !isWhole && "at least ";
  const [ready, flying] = [sum(members, "readyMessages"), sum(members, "inFlightMessages")];
  const lags = there.map((one) => one.overview.lagMs).filter(isKnown);
  const oldest = lags.length ? Math.max(...lags.map(Number)) : undefined;
  const fullest = there.map((one) => one.overview).reduce((one, other) => (share(other) > share(one) ? other : one));
  const p99 = hour.lastOf("send_p99_ms");
  const busiest = { order: "FIGURE_ORDER_BUSIEST" };
  const behind = { order: "FIGURE_ORDER_LAG" };
  return [
    h(
      "div",
      { class: "cards-row" },
      card(["topics", busiest], "Messages in", rate(sum(members, "sentPerSecond")), [count(sum(members, "sent")), " since the start"], hour, SPARKS[0]),
      card(["topics", busiest], "Messages out", rate(sum(members, "receivedPerSecond")), [count(sum(members, "received")), " since the start"], hour, SPARKS[1]),
      card(["groups", behind], "Waiting", [most(ready), count(ready, notCounted)], [count(flying, notCounted), " in flight"], hour, SPARKS[2]),
      card(["groups", behind], "Oldest waits", oldest === 0 && isWhole ? "nothing" : [most(oldest), duration(oldest, notCounted)], "of all groups", hour, SPARKS[3]),
      card(["stages"], "Sends, p99", p99 === undefined ? unknown("nothing was sent in the last hour") : duration(p99), there.length > 1 ? "of the slowest member" : "from request to answer", hour, SPARKS[4]),
      card(["storage"], "Disk used", diskUsed(fullest), [bytes(fullest.diskFree), " free", there.length > 1 && ` on ${fullest.broker.name}`], hour, SPARKS[5]),
    ),
    members.length > 1 &&
      h(
        "p",
        { class: "note" },
        there.length < members.length
          ? `Of ${there.length} of ${members.length} members: what the others have is missing.`
          : `Of all ${members.length} members.`,
      ),
  ];
}

const share = (it) => 1 - Number(it.diskFree) / Number(it.diskTotal);

const notCounted = "no group is in memory, or no group was counted yet";

function card([page, query], name, value, note, hour, series) {
  return h(
    "a",
    { class: "card", href: address([page], query) },
    h("span", { class: "card-name" }, name),
    h("span", { class: "card-value" }, value),
    sparkline(hour.valuesOf(series)),
    h("span", { class: "card-note" }, note),
  );
}

// --- concerns ---

function concerns({ members }) {
  const rows = members.flatMap((one) => {
    if (!one.overview) return [{ member: one, text: "does not answer", why: why(one), isBad: true }];
    const readiness =
      one.overview.readiness === "ready"
        ? []
        : [{ member: one, text: `not ready: ${one.overview.readiness}`, isBad: true }];
    return [...readiness, ...concernsOf(one)];
  });
  const concerned = sameOnes(rows);
  if (!rows.length) return h("p", { class: "clear" }, badge("good", "All clear"), " Nothing needs you.");
  return h(
    "ul",
    { class: "concern-list" },
    concerned.map((row) =>
      h(
        "li",
        null,
        badge(row.isBad ? "bad" : "warn", row.isBad ? "fault" : "warning"),
        h(
          "div",
          { class: "concern-text" },
          h(
            "p",
            null,
            members.length > 1 && h("strong", null, `${row.names.join(", ")}: `),
            row.text,
            row.why && [" ", h("span", { class: "none" }, `(${row.why})`)],
            Number(row.sinceMs) > 0 && [" ", h("span", { class: "none" }, "began ", age(row.sinceMs))],
          ),
          row.command && h("p", { class: "concern-command" }, h("code", null, row.command), copyButton(row.command, "Copy the command")),
        ),
        row.page && pageLink(row.page),
      ),
    ),
  );
}

// What several members say in the same words is said once, since when the first of them said so.
function sameOnes(rows) {
  const found = new Map();
  for (const row of rows) {
    const key = `${row.text} ${row.why ?? ""} ${row.command ?? ""}`;
    const known = found.get(key);
    if (known) known.names.push(row.member.name);
    else found.set(key, { ...row, names: [row.member.name] });
  }
  return [...found.values()].sort((one, other) => other.isBad - one.isBad);
}

function pageLink(page) {
  const parts = page.split("/").map((part) => decodeURIComponent(part));
  return link(parts, [parts.length > 1 ? `Open ${parts.at(-1)}` : `Open the page ${parts[0]}`, icon("go")]);
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
  return badge(["active", "alone"].includes(member.state) ? "good" : "warn", member.state);
}

// gRPC's own words end with the short reason.
const why = (member) => (member.problem || "the member did not answer").split(": ").at(-1).toLowerCase();

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
        less: true,
        cell: (one) => figure(one, (it) => count(it.sentYesterday, partOfDay)),
      },
      {
        title: "Received yesterday",
        kind: "number",
        less: true,
        cell: (one) => figure(one, (it) => count(it.receivedYesterday, partOfDay)),
      },
    ],
    members,
    { isPast: (one) => !one.overview },
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
      [
        "Log checked",
        isKnown(it.logCheckRatio)
          ? link(["jobs"], `${(100 * it.logCheckRatio).toFixed(1)} % of a sweep`)
          : link(["jobs"], age(it.logCheckedAtMs, "not yet")),
      ],
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

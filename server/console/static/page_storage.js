// Where messages lie and for how long, and what goes next.
import { valuesOf } from "./dialog.js";
import { h, replace } from "./dom.js";
import { expiryPanel } from "./expiry.js";
import { age, badge, bytes, count, counted, duration, isKnown, none, percent, time, unknown } from "./format.js";
import { link } from "./links.js";
import { isMany, isMissing, memberColumns, memberTabs } from "./members.js";
import { topicField } from "./names.js";
import { spansTable } from "./page_topic.js";
import { facts, pager, table } from "./table.js";
import { panel, section } from "./view.js";
import { workButton } from "./work.js";

const COPIES_MS = 5000;

export async function show(view) {
  view.begin("Storage");
  const members = membersOf(view);
  let storage = null;
  const now = () => {
    storage ??= view.call("StorageService/GetStorage");
    return storage;
  };
  const disk = section(view, "Disk and retention", async () => diskFacts(await now()));
  const segments = section(view, "Segments of the log", async () => segmentsTable(await now()));
  const parts = section(view, "Other data", async () => partsView(await now()));
  const anew = () => {
    storage = null;
    for (const one of [members, disk, segments, parts]) one.refresh();
  };
  view.add(members, disk, copies(view), expiryPanel(view, anew), segments, spans(view), parts, summary(view), indexFiles(view));
  view.every(30000, anew);
}

// The disks of all members, and whose the rest of the page is. Nothing of a broker that is alone.
function membersOf(view) {
  const list = section(view, "Members", async () => {
    const parts = await view.callMembers("StorageService/GetStorage");
    list.hidden = !isMany(parts);
    return [
      table(
        "Storage by member",
        memberColumns([
          { title: "State", figure: stateOf },
          { title: "In use", kind: "number", figure: (it) => percent(it.diskUsedPercent) },
          { title: "Free", kind: "number", figure: (it) => bytes(it.diskFree) },
          { title: "Log", kind: "number", figure: (it) => bytes(Number(it.logEnd) - Number(it.logBegin)) },
          {
            title: "Oldest message",
            figure: (it) => age(it.oldestStoredAtMs, "the log is empty, or its first record cannot be read"),
          },
        ]),
        parts,
        { isPast: isMissing },
      ),
      memberTabs(view, ["storage"], parts),
    ];
  });
  list.hidden = true;
  return list;
}

// The copies of the store on other machines; hidden if there are none.
function copies(view) {
  const list = section(
    view,
    "Copies on other machines",
    async () => {
      const { replicas } = await view.call("ReplicaService/ListReplicas");
      list.hidden = !replicas.length;
      return copiesTable(replicas);
    },
    { everyMs: COPIES_MS },
  );
  list.hidden = true;
  return list;
}

function copiesTable(replicas) {
  return table(
    "Copies of this store",
    [
      { title: "Machine", cell: (one) => h("strong", null, one.name) },
      {
        title: "State",
        cell: (one) =>
          one.role === "primary"
            ? badge("good", "primary")
            : !one.isConnected
              ? badge("bad", "away")
              : one.isSeeding
                ? badge("warn", "being seeded")
                : badge("good", "follows"),
      },
      { title: "Address", kind: "wide", cell: (one) => one.address || none("–") },
      { title: "Log on its disk up to", kind: "number", cell: (one) => count(one.flushedOffset) },
      { title: "Missing", kind: "number", cell: (one) => (one.role === "primary" ? none("–") : bytes(one.lagBytes)) },
      {
        title: "Missing changes",
        kind: "number",
        cell: (one) => (one.role === "primary" ? none("–") : count(one.lagChanges)),
      },
      { title: "Lag", kind: "number", cell: (one) => (one.role === "primary" ? none("–") : duration(one.lagMs)) },
    ],
    replicas,
  );
}

function stateOf(it) {
  const used = Number(it.diskUsedPercent);
  return !isKnown(it.diskUsedPercent)
    ? unknown("the system does not report the disk usage")
    : used >= it.refusePercent
      ? badge("bad", "sends are refused")
      : used >= it.forcePercent
        ? badge("warn", "files go before their time")
        : badge("good", "there is room");
}

function diskFacts(it) {
  return facts([
    ["State", stateOf(it)],
    ["In use", percent(it.diskUsedPercent)],
    ["Free", [bytes(it.diskFree), " of ", bytes(it.diskTotal)]],
    ["Files are deleted early from", percent(it.forcePercent)],
    ["Sends are refused from", percent(it.refusePercent)],
    ["Retention", isKnown(it.retentionMs) ? duration(it.retentionMs) : "ever"],
    ["Expired files are deleted at", it.deleteHours?.length ? `${it.deleteHours.join(", ")} o'clock` : "any hour"],
    ["Oldest message", age(it.oldestStoredAtMs, "the log is empty, or its first record cannot be read")],
    ["Newest message", age(it.newestStoredAtMs, "the log is empty, or its last record cannot be read")],
    [
      "Time span kept",
      isKnown(it.oldestStoredAtMs) && isKnown(it.newestStoredAtMs)
        ? duration(it.newestStoredAtMs - it.oldestStoredAtMs)
        : unknown(),
    ],
    ["Log", [bytes(Number(it.logEnd) - Number(it.logBegin)), ` in ${counted(it.segmentCount, "file")}`]],
    [
      "Next file to expire",
      it.expiresNext
        ? [
            h("span", { class: "mono" }, it.expiresNext),
            ", ",
            isKnown(it.expiresNextAtMs) ? ["from ", time(it.expiresNextAtMs), " on"] : unknown(),
          ]
        : unknown("there is only the file that is being written, or its age is unknown"),
    ],
  ]);
}

function segmentsTable(it) {
  const left = Number(it.segmentCount) - it.segments.length;
  return [
    left > 0 && h("p", { class: "note" }, `${left} in the middle are not shown`),
    table(
      "Segments, the oldest first",
      [
        {
          title: "File",
          cell: (one) => [
            h("span", { class: "code" }, one.name),
            " ",
            one.name === it.expiresNext && badge("info", "goes next"),
          ],
        },
        { title: "Begins at", kind: "number", cell: (one) => count(one.begin) },
        { title: "Size", kind: "number", cell: (one) => bytes(one.size) },
        { title: "First stored", cell: (one) => age(one.firstStoredAtMs) },
        { title: "Last stored", cell: (one) => age(one.lastStoredAtMs) },
        {
          title: "Spans",
          kind: "number",
          cell: (one) =>
            isKnown(one.firstStoredAtMs) && isKnown(one.lastStoredAtMs)
              ? duration(one.lastStoredAtMs - one.firstStoredAtMs)
              : unknown(),
        },
      ],
      it.segments,
      { empty: "There are no files yet." },
    ),
  ];
}

function partsView(it) {
  return [
    facts(it.parts.map((one) => [one.name, bytes(one.bytes, "unknown for this store")])),
    h("h3", null, "RocksDB"),
    table(
      "RocksDB's own stats",
      [
        { title: "Database", cell: (one) => one.database },
        { title: "Family", cell: (one) => one.family },
        { title: "Keys, about", kind: "number", cell: (one) => count(one.figures.keys_estimate) },
        { title: "Tables", kind: "number", cell: (one) => bytes(one.figures.table_bytes) },
        { title: "In memory", kind: "number", cell: (one) => bytes(one.figures.memtable_bytes) },
        { title: "To be compacted", kind: "number", cell: (one) => bytes(one.figures.pending_compaction_bytes) },
        { title: "State", cell: (one) => familyState(one.figures) },
      ],
      it.families.filter((one) => one.family),
      { empty: "No stats." },
    ),
    allFigures(it.families),
  ];
}

function familyState(figures) {
  if (Number(figures.background_errors) > 0) return badge("bad", `${figures.background_errors} errors`);
  if (Number(figures.write_stopped) > 0) return badge("bad", "writes are stopped");
  return figures.background_errors === undefined ? unknown() : badge("good", "writes go on");
}

// What is 0 in all is left out of the long list: it is most of it.
function allFigures(families) {
  const rows = families.flatMap((one) =>
    Object.entries(one.figures)
      .filter(([, value]) => Number(value) !== 0)
      .sort()
      .map(([name, value]) => ({ database: one.database, family: one.family, name, value })),
  );
  return h(
    "details",
    { "data-fold": "figures" },
    h("summary", null, `All stats that are not 0 (${rows.length})`),
    table(
      "All stats of RocksDB",
      [
        { title: "Database", cell: (one) => one.database },
        { title: "Family", cell: (one) => one.family || "(all)" },
        { title: "Figure", cell: (one) => h("span", { class: "code" }, one.name) },
        {
          title: "Value",
          kind: "number",
          cell: (one) => (/_bytes\b/.test(one.name) ? bytes(one.value) : count(one.value)),
        },
      ],
      rows,
      { dense: true },
    ),
  );
}

// --- queues ---

function spans(view) {
  const place = h("div");
  const form = h(
    "form",
    {
      class: "filters",
      onsubmit: (event) => {
        event.preventDefault();
        const topic = valuesOf(form).topic.trim();
        const pages = pager();
        const list = section(
          view,
          `Queues of ${topic}`,
          async () => {
            const answer = await view.call("StorageService/ListQueueSpans", {
              topic,
              limit: 100,
              ...(pages.after === undefined ? {} : { after: pages.after }),
            });
            return [
              spansTable(topic, answer.queues),
              pages.bar({ next: answer.hasMore ? answer.queues.at(-1).queue : null, refresh: () => list.refresh() }),
            ];
          },
          { level: 3 },
        );
        replace(place, list);
      },
    },
    h("div", { class: "grow" }, topicField(view)),
    h("button", { type: "submit" }, "Show"),
  );
  return panel("Time spans by queue", form, place);
}

function summary(view) {
  const place = h("div");
  return panel(
    "Counts of all queues",
    h("p", { class: "lead" }, "It looks at each queue: some seconds for a million of them, beside everything else."),
    workButton("Count them", async () => {
      const it = await view.call("AdminService/SummarizeQueues", { largest: 20 });
      replace(
        place,
        table(
          "Queues by kind",
          [
            { title: "Kind", cell: (one) => one.kind.replaceAll("_", " ") },
            { title: "Queues", kind: "number", cell: (one) => count(one.queues) },
            { title: "Empty", kind: "number", cell: (one) => count(one.empty) },
            { title: "Entries", kind: "number", cell: (one) => count(one.entries) },
          ],
          it.kinds,
        ),
        h("h3", null, "The largest"),
        table(
          "The largest queues",
          [
            { title: "Topic", cell: (one) => link(["topics", one.topic], one.topic) },
            { title: "Queue", kind: "number", cell: (one) => String(one.queue) },
            { title: "Entries", kind: "number", cell: (one) => count(one.entries) },
          ],
          it.largest,
        ),
        h("h3", null, "On disk"),
        table(
          "On disk",
          [
            { title: "Kind", cell: ([name]) => name },
            { title: "Files", kind: "number", cell: ([, one]) => count(one.files) },
            { title: "Size", kind: "number", cell: ([, one]) => bytes(one.apparentBytes) },
            { title: "Taken", kind: "number", cell: ([, one]) => bytes(one.allocatedBytes) },
          ],
          Object.entries(it.disk),
        ),
      );
      return "counted";
    }),
    place,
  );
}

// On demand: a broker may keep no such index.
function indexFiles(view) {
  const place = h("div");
  return panel(
    "Files of the key index",
    workButton("List them", async () => {
      const { files } = await view.call("IndexService/ListIndexFiles");
      replace(place, filesTable(files));
      return counted(files.length, "file");
    }),
    place,
  );
}

function filesTable(files) {
  return table(
    "Files of the key index, the oldest first",
    [
      { title: "File", cell: (one) => h("span", { class: "mono" }, one.name) },
      { title: "Kind", cell: (one) => one.kind },
      { title: "Stage", cell: (one) => (one.damage ? badge("bad", one.stage, one.damage) : one.stage) },
      {
        title: "Keys",
        kind: "number",
        cell: (one) => (one.stage === "damaged" ? unknown(one.damage) : count(one.items)),
      },
      {
        title: "Size",
        kind: "number",
        cell: (one) => (one.stage === "damaged" ? unknown(one.damage) : bytes(one.sizeBytes)),
      },
      {
        title: "From",
        cell: (one) => (Number(one.beginMs) ? time(one.beginMs) : h("span", { class: "none" }, "nothing in it")),
      },
      {
        title: "To",
        cell: (one) => (Number(one.endMs) ? time(one.endMs) : h("span", { class: "none" }, "nothing in it")),
      },
      { title: "Where", cell: (one) => (one.isLocal ? "on disk" : "object store") },
      { title: "Wrong", kind: "wide", cell: (one) => one.damage || one.unread || "nothing that is known" },
    ],
    files,
    { empty: "The broker has no index files." },
  );
}

// The list of pages: in the navigation, in the search box, and by the first part of an address.

// [first part of the address, name, module, group; null: in no list]
export const PAGES = [
  ["", "Overview", "overview", "Monitor"],
  ["topics", "Topics", "topics", "Monitor"],
  ["groups", "Groups", "groups", "Monitor"],
  ["clients", "Clients", "clients", "Monitor"],
  ["lite", "Lite topics", "lite", "Monitor"],
  ["messages", "Messages", "messages", "Messages"],
  ["tail", "Live tail", "tail", "Messages"],
  ["trace", "Trace", "trace", "Messages"],
  ["dead-letters", "Dead letters", "dead_letters", "Messages"],
  ["pending", "Pending", "pending", "Messages"],
  ["storage", "Storage", "storage", "Manage"],
  ["stages", "Time by stage", "stages", "Manage"],
  ["jobs", "Jobs", "jobs", "Manage"],
  ["migration", "Migration", "migration", "Manage"],
  ["members", "Members", "members", "Manage"],
  ["users", "Users and rules", "users", "Manage"],
  ["settings", "Settings", "settings", "Manage"],
  ["message", null, "message", null],
];

// Pages of one thing, by the number of parts of the address.
export const DETAILS = { topics: "topic", groups: "group", "dead-letters": "dead_letters", jobs: "job" };

// Whether a page has anything to show on this broker, by its overview. What is left out here is found by the search box.
const APPLIES = {
  lite: ({ overview }) => Number(overview.liteTopics ?? 0) > 0,
  migration: ({ overview }) => overview.migrationPhase !== "rocksdb",
  members: ({ members }) => members > 1,
  users: ({ session }) => session.needsLogin,
};

// How many there are of what a page lists.
const COUNTS = {
  topics: (it) => it.topics,
  groups: (it) => it.groups,
  clients: (it) => it.producers !== undefined && Number(it.producers) + Number(it.consumers),
  lite: (it) => it.liteTopics,
  pending: (it) => it.timers !== undefined && Number(it.timers) + Number(it.transactions ?? 0),
  jobs: (it) => it.openJobs,
};

// What the list of pages counts, of all members that answered: clients and names are the same on each.
export function together(members) {
  const there = members.filter((one) => one.overview).map((one) => one.overview);
  const own = members.find((one) => one.isSelf)?.overview ?? there[0];
  const sum = (name) =>
    there.every((one) => one[name] !== undefined) ? there.reduce((all, one) => all + Number(one[name]), 0) : undefined;
  return { ...own, timers: sum("timers"), transactions: sum("transactions"), openJobs: sum("openJobs") };
}

export function applies(path, known) {
  return known.overview === null || !APPLIES[path] || APPLIES[path](known);
}

export function countOf(path, overview) {
  return (overview && COUNTS[path]?.(overview)) || 0;
}

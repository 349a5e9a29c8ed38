// A group in a topic, in one line or as rows of a table.
import { badge, count, duration, isKnown, rate, unknown } from "./format.js";
import { groupLink, topicLink } from "./links.js";
import { table } from "./table.js";

const notCounted = "the group is not in memory and was not counted";

export function lagOf(pair) {
  if (!isKnown(pair.lagMs)) return unknown(notCounted);
  return Number(pair.lagMs) === 0 ? "nothing waiting" : duration(pair.lagMs);
}

// Whether a group is stuck, as a sign and a word.
export function pairState(pair) {
  const consumers = Number(pair.consumers);
  const waits = Number(pair.ready ?? 0) + Number(pair.inFlight ?? 0);
  if (!isKnown(pair.ready)) return consumers ? badge("info", "reads") : badge("idle", "away");
  if (waits === 0) return consumers ? badge("good", "up to date") : badge("idle", "nobody there, nothing waiting");
  return consumers ? badge("info", "behind") : badge("warn", "behind, nobody there");
}

export function pairLine(pair) {
  return [
    groupLink(pair.group),
    ": ",
    count(pair.ready, notCounted),
    " ready, ",
    isKnown(pair.lagMs) && Number(pair.lagMs) === 0 ? "nothing waiting" : ["oldest waits ", lagOf(pair)],
    Number(pair.consumers) === 0 && [" ", badge("warn", "nobody there")],
  ];
}

// `kind` says which of the two has a column: "group" or "topic".
export function pairsTable(caption, pairs, kind, empty) {
  return table(
    caption,
    [
      kind === "group"
        ? { title: "Group", cell: (one) => groupLink(one.group) }
        : { title: "Topic", cell: (one) => topicLink(one.topic) },
      { title: "State", cell: pairState },
      { title: "Ready", kind: "number", cell: (one) => count(one.ready, notCounted) },
      { title: "In flight", kind: "number", cell: (one) => count(one.inFlight, notCounted) },
      { title: "Oldest waiting", kind: "number", cell: lagOf },
      {
        title: "Out",
        kind: "number",
        cell: (one) => rate(one.receivedPerSecond, "not counted individually (metrics.top_groups)"),
      },
      { title: "Clients", kind: "number", cell: (one) => count(one.consumers) },
    ],
    pairs,
    { empty },
  );
}

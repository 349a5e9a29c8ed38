// The figures of one topic or group: as the broker tells them now, and in the last hour.
import { ChartSet } from "./chart_set.js";
import { h } from "./dom.js";
import { Hour } from "./hour.js";
import { section } from "./view.js";

const REFRESH_MS = 10000;
const ROUNDS_MAX = 20;

// The figures of this very topic or group; null without any. Names are looked for by what is in them, in order, so that
// it may be behind others.
export async function figuresOf(view, kind, name) {
  const method = kind === "topic" ? "OverviewService/ListTopicFigures" : "OverviewService/ListGroupFigures";
  let after = "";
  for (let round = 0; round < ROUNDS_MAX; round += 1) {
    const more = kind === "topic" ? { includeSystem: true } : {};
    const answer = await view.call(method, { contains: name, after, limit: 100, ...more });
    const rows = answer[`${kind}s`];
    const own = rows.find((one) => one[kind].name === name);
    if (own) return own;
    if (!answer.hasMore || !rows.length) break;
    after = rows.at(-1)[kind].name;
  }
  return null;
}

// A section with charts of rates, backlog and age.
export function activity(view, kind, name) {
  const hour = new Hour(view, [], { [kind]: name });
  const set = new ChartSet();
  return section(
    view,
    "Activity",
    async () => {
      await hour.refresh();
      if (!hour.times.length)
        return h(
          "p",
          { class: "empty" },
          `The broker keeps the past of the busiest ${kind}s and of those furthest behind; this one is not among them, or not yet.`,
        );
      set.update(hour.times, plans(kind, hour));
      return set.nodes;
    },
    { everyMs: REFRESH_MS },
  );
}

function plans(kind, hour) {
  const line = (label, name) => ({ label, values: hour.valuesOf(name) });
  return [
    [
      "Messages per second",
      "messages/s",
      [kind === "topic" && line("sent", "sent_per_second"), line("received", "received_per_second")].filter(Boolean),
      true,
    ],
    [
      kind === "topic" ? "Waiting for its groups" : "Waiting messages",
      "messages",
      [line("ready", "ready_messages"), line("in flight", "in_flight_messages")],
      true,
    ],
    ["Age of the oldest waiting message", "seconds", [line("oldest", "lag_seconds")], true],
  ];
}

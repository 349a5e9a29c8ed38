// The figures of one topic or group: of all members now, by member, and in the last hour.
import { ChartSet } from "./chart_set.js";
import { h } from "./dom.js";
import { Hour } from "./hour.js";
import { section } from "./view.js";

const REFRESH_MS = 10000;
const METHODS = { topic: "ListTopicFigures", group: "ListGroupFigures" };

// The figures of this very topic or group, null without any, with who is missing in them: {own, members}.
export async function figuresOf(view, kind, name) {
  const answer = await view.callFigures(METHODS[kind], { names: [name] });
  return { own: answer[`${kind}s`].find((one) => one[kind].name === name) ?? null, members: answer.members };
}

// The same of each member, with the name of the figures in the answers: a member without them has an empty one.
export async function figuresByMember(view, kind, name) {
  const parts = await view.callMembers(`OverviewService/${METHODS[kind]}`, { names: [name] });
  for (const part of parts) part.answers = part.answers.map((answer) => answer[`${kind}s`][0] ?? {});
  return parts;
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

// The figures of one topic or group: as the broker tells them now, and since this window first looked at them. The broker
// keeps no past of single topics and groups.
import { ChartSet } from "./chart_set.js";
import { isKnown } from "./format.js";

const SAMPLES_MAX = 360;
const ROUNDS_MAX = 20;
const past = new Map();

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
    if (own) {
      remember(kind, name, own);
      return own;
    }
    if (!answer.hasMore || !rows.length) break;
    after = rows.at(-1)[kind].name;
  }
  return null;
}

const numberOf = (value) => (isKnown(value) ? Number(value) : NaN);

function total(pairs, name) {
  return pairs.reduce((sum, one) => sum + numberOf(one[name]), 0);
}

function remember(kind, name, own) {
  const pairs = own.groups ?? own.topics;
  const key = `${kind}/${name}`;
  if (!past.has(key)) past.set(key, { times: [], rows: [] });
  const kept = past.get(key);
  const lags = pairs.map((one) => numberOf(one.lagMs));
  kept.times.push(Date.now());
  kept.rows.push({
    sent: numberOf(own.sentPerSecond),
    received: kind === "topic" ? numberOf(own.receivedPerSecond) : total(pairs, "receivedPerSecond"),
    ready: isKnown(own.ready) ? numberOf(own.ready) : total(pairs, "ready"),
    inFlight: isKnown(own.inFlight) ? numberOf(own.inFlight) : total(pairs, "inFlight"),
    lag: isKnown(own.lagMs) ? numberOf(own.lagMs) : Math.max(0, ...lags),
  });
  if (kept.times.length > SAMPLES_MAX) {
    kept.times.shift();
    kept.rows.shift();
  }
}

export class WatchedCharts {
  constructor(kind, name) {
    this.kind = kind;
    this.key = `${kind}/${name}`;
    this.set = new ChartSet("since this window first looked at it");
  }

  // The nodes, drawn with what is known by now.
  draw() {
    const kept = past.get(this.key) ?? { times: [], rows: [] };
    const values = (name) => kept.rows.map((one) => one[name]);
    const rates = [
      this.kind === "topic" && { label: "sent", values: values("sent") },
      { label: "received", values: values("received") },
    ].filter(Boolean);
    this.set.update(kept.times, [
      ["Messages per second", "messages/s", rates, true],
      [
        this.kind === "topic" ? "Waiting for its groups" : "Waiting messages",
        "messages",
        [
          { label: "ready", values: values("ready") },
          { label: "in flight", values: values("inFlight") },
        ],
        true,
      ],
      ["Age of the oldest waiting message", "ms", [{ label: "oldest", values: values("lag") }], true],
    ]);
    return this.set.nodes;
  }
}

// Where the time of sends and receives goes, from cumulative histograms.
import { h } from "./dom.js";
import { badge, count, duration, unknown } from "./format.js";
import { table } from "./table.js";

export const SLOW_SECONDS = 0.1;

// The bound below which the share of all values lies; null without values, Infinity above the last bound.
export function quantile(bounds, counts, share) {
  const all = counts.reduce((sum, one) => sum + one, 0);
  if (all <= 0) return null;
  let below = 0;
  for (let index = 0; index < counts.length; index += 1) {
    below += counts[index];
    if (below >= share * all) return bounds[index] ?? Infinity;
  }
  return Infinity;
}

function bound(seconds, last) {
  if (seconds === null) return h("span", { class: "none" }, "no calls");
  return seconds === Infinity ? ["above ", duration(last * 1000)] : ["≤ ", duration(seconds * 1000)];
}

export function stagesTable({ own }, { before }) {
  const stages = own?.overview?.stages ?? [];
  const earlier = new Map((before?.stages ?? []).map((one) => [`${one.call} ${one.name}`, one]));
  const rows = stages.map((stage) => {
    const past = earlier.get(`${stage.call} ${stage.name}`);
    const counts = stage.counts.map((one, index) => Number(one) - Number(past?.counts[index] ?? 0));
    const calls = counts.reduce((sum, one) => sum + one, 0);
    const total = stage.totalSeconds - (past?.totalSeconds ?? 0);
    return {
      stage,
      calls,
      mean: calls > 0 ? total / calls : null,
      last: stage.boundsSeconds.at(-1),
      half: quantile(stage.boundsSeconds, counts, 0.5),
      most: quantile(stage.boundsSeconds, counts, 0.99),
    };
  });
  return table(
    "Stages of calls",
    [
      { title: "Call", cell: (row) => row.stage.call },
      { title: "Stage", cell: (row) => row.stage.name.replaceAll("_", " ") },
      { title: "Values", kind: "number", cell: (row) => count(row.calls) },
      {
        title: "Mean",
        kind: "number",
        cell: (row) => (row.mean === null ? h("span", { class: "none" }, "no calls") : duration(row.mean * 1000)),
      },
      { title: "p50", kind: "number", cell: (row) => bound(row.half, row.last) },
      { title: "p99", kind: "number", cell: (row) => bound(row.most, row.last) },
      {
        title: "Verdict",
        cell: (row) =>
          row.stage.name === "wait"
            ? badge("idle", "waits for messages")
            : row.most === null
              ? unknown("no calls yet")
              : row.most > SLOW_SECONDS
                ? badge("warn", "slow", `p99 above ${SLOW_SECONDS} s`)
                : badge("good", "quick"),
      },
    ],
    rows,
    { empty: "The broker reports no stages.", dense: true },
  );
}

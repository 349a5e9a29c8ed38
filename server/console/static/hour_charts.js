// The last hour of the broker as charts.
import { ChartSet } from "./chart_set.js";
import { Hour } from "./hour.js";

const REFRESH_MS = 10000;

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

export async function hourCharts(view) {
  const hour = new Hour(view);
  const set = new ChartSet();
  const round = async () => {
    await hour.refresh();
    set.update(hour.times, plans(hour));
  };
  await round();
  view.every(REFRESH_MS, () => {
    // the page's other parts say that the broker does not answer
    round().catch(() => {});
  });
  return set.nodes;
}

function plans(hour) {
  const left = new Set(hour.series.keys());
  const plan = (title, names, labels, isFirst) => [
    title,
    hour.series.get(names[0]).unit,
    names.map((name) => ({ label: labels[name], values: hour.valuesOf(name) })),
    isFirst,
  ];
  const there = CHARTS.map(([title, labels, isFirst]) => [
    title,
    Object.keys(labels).filter((name) => left.delete(name)),
    labels,
    isFirst,
  ]).filter(([, names]) => names.length);
  const own = [...left].map((name) => [name.replaceAll("_", " "), [name], { [name]: hour.series.get(name).unit }, false]);
  return [...there, ...own].map((one) => plan(...one));
}

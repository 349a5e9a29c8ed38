// Moving where a group reads next: always a dry run first, with what would change.
import { field, valuesOf, wrong } from "./dialog.js";
import { h, replace } from "./dom.js";
import { badge, count, counted, isKnown, localInputMs, timeText } from "./format.js";
import { answered, isMany, memberColumn, missingParts, rowsOf } from "./members.js";
import { topicField } from "./names.js";
import { table } from "./table.js";
import { wholeNumber } from "./topic_form.js";
import { failure, panel } from "./view.js";
import { countsText, runJob, workButton } from "./work.js";

const POSITIONS = [
  ["storedSinceMs", "to a time: the first message stored then or later"],
  ["earliest", "to the oldest message"],
  ["latest", "after the newest message"],
  ["offset", "to an offset"],
];
const ROWS = 200;

export function resetForm(view, group, done) {
  const place = h("div", { role: "status" });
  const form = h(
    "form",
    {
      onsubmit: (event) => {
        event.preventDefault();
        preview(view, group, form, place, done);
      },
    },
    h(
      "div",
      { class: "filters" },
      topicField(view),
      field({ name: "queue", label: "Queue", type: "number", min: "0", hint: "empty: all" }),
      field({ name: "position", label: "Where to", options: POSITIONS }),
      field({ name: "time", label: "Time", type: "datetime-local" }),
      field({ name: "offset", label: "Offset", type: "number", min: "0" }),
      h("button", { type: "submit" }, "Dry run"),
    ),
  );
  const adapt = () => {
    const { position } = valuesOf(form);
    form.elements.time.closest("label").hidden = position !== "storedSinceMs";
    form.elements.offset.closest("label").hidden = position !== "offset";
  };
  form.elements.position.addEventListener("change", adapt);
  adapt();
  // A preview of other values than the form has would mislead.
  form.addEventListener("input", () => replace(place));
  return panel(
    "Reset offsets",
    h(
      "p",
      { class: "lead" },
      "Moves the group's position. The dry run shows each queue before and after; nothing changes until you confirm. Messages that were already delivered are not taken back.",
    ),
    form,
    place,
  );
}

function requestOf(group, values) {
  const request = { group, topic: values.topic.trim() };
  if (values.queue.trim()) request.queue = wholeNumber(values.queue, "Queue");
  if (values.position === "earliest" || values.position === "latest") request[values.position] = {};
  else if (values.position === "offset") request.offset = wholeNumber(values.offset, "Offset");
  else {
    const since = localInputMs(values.time);
    if (since === null) throw wrong("Time: required");
    request.storedSinceMs = String(since);
  }
  return request;
}

async function preview(view, group, form, place, done) {
  replace(place, "Checking the queues …");
  try {
    const values = valuesOf(form);
    const request = requestOf(group, values);
    const wording =
      { earliest: "to the oldest message", latest: "after the newest message", offset: `to offset ${values.offset}` }[
        values.position
      ] ?? `to ${timeText(request.storedSinceMs)}`;
    const parts = await view.callMembers("AdminService/ResetOffset", { ...request, dryRun: true });
    const big = parts.find((one) => one.code === "OUT_OF_RANGE");
    if (!big) {
      replace(place, smallPreview(view, request, wording, parts, place, done));
      return;
    }
    replace(
      place,
      missingParts(parts, ["OUT_OF_RANGE"]),
      h("p", { class: "notice info" }, "● ", big.problem, ". A job counts first what would change."),
    );
    const members = parts.filter((one) => !one.code || one.code === "OUT_OF_RANGE").map((one) => one.member);
    for (const member of members) {
      const box = h("div", null, isMany(parts) && h("h3", null, member));
      place.append(box);
      await bigPreview(view.on(member, isMany(parts) ? member : ""), request, wording, box, done);
    }
  } catch (error) {
    replace(place, failure(error));
  }
}

function moved(one) {
  return !isKnown(one.previousOffset) || one.previousOffset !== one.newOffset;
}

function difference(one) {
  if (!isKnown(one.previousOffset)) return badge("info", "begins here");
  const by = BigInt(one.newOffset) - BigInt(one.previousOffset);
  if (by === 0n) return badge("idle", "stays");
  return by < 0n
    ? badge("warn", `back by ${(-by).toLocaleString("en")}: delivered again`)
    : badge("warn", `forward by ${by.toLocaleString("en")}: passed over`);
}

function queuesTable(queues, parts) {
  return [
    table(
      "Queues before and after",
      [
        { title: "Queue", kind: "number", cell: (one) => String(one.queue) },
        memberColumn(parts),
        {
          title: "Before",
          kind: "number",
          cell: (one) =>
            isKnown(one.previousOffset) ? count(one.previousOffset) : h("span", { class: "none" }, "never read"),
        },
        { title: "After", kind: "number", cell: (one) => count(one.newOffset) },
        { title: "Change", cell: difference },
      ].filter(Boolean),
      queues.slice(0, ROWS),
    ),
    queues.length > ROWS && h("p", { class: "note" }, `and ${queues.length - ROWS} more queues`),
  ];
}

function smallPreview(view, request, wording, parts, place, done) {
  const there = answered(parts);
  const queues = rowsOf(there, (answer) => answer.queues);
  const changed = queues.filter(moved).length;
  return [
    h("h3", null, "Dry run: nothing has changed yet"),
    missingParts(parts),
    queuesTable(queues, parts),
    h("p", null, `${changed} of ${counted(queues.length, "queue")} of ${request.topic} would be moved ${wording}.`),
    workButton(
      `Reset ${counted(changed, "queue")} now`,
      async () => {
        const now = await view.callMembers("AdminService/ResetOffset", { ...request, dryRun: false });
        const reset = rowsOf(answered(now), (answer) => answer.queues);
        replace(
          place,
          missingParts(now),
          h("p", { class: "notice good" }, `✓ ${counted(reset.filter(moved).length, "queue was", "queues were")} moved ${wording}.`),
          queuesTable(reset, now),
        );
        done();
        return "done";
      },
      { className: "danger" },
    ),
  ];
}

async function bigPreview(view, request, wording, place, done) {
  const dry = h("div");
  const real = h("div");
  const after = h("div");
  place.append(dry, after, real);
  const counted = await runJob(view, { resetOffset: request }, { dryRun: true, place: dry });
  if (counted.state !== "done") return;
  replace(
    after,
    h("p", null, "Would be done: ", countsText(counted.counts), ` ${wording}.`),
    workButton(
      "Reset as a job now",
      async () => {
        const job = await runJob(view, { resetOffset: request }, { place: real });
        done();
        return `the job is ${job.state}`;
      },
      { className: "danger" },
    ),
  );
}

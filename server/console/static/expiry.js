// What expires next: a dry run with who has not read it, and then the files go.
import { confirm, field, valuesOf } from "./dialog.js";
import { h, replace } from "./dom.js";
import { badge, bytes, count, counted, time } from "./format.js";
import { groupLink } from "./links.js";
import { table } from "./table.js";
import { failure, panel } from "./view.js";
import { workButton } from "./work.js";

export function expiryPanel(view, done) {
  const place = h("div", { role: "status" });
  const form = h(
    "form",
    {
      class: "filters plain",
      onsubmit: async (event) => {
        event.preventDefault();
        replace(place, "Looking …");
        try {
          const rewriteQueues = valuesOf(form).rewriteQueues;
          const answer = await view.call("AdminService/ExpireSegments", { dryRun: true, rewriteQueues });
          replace(place, expiryPreview(view, answer, rewriteQueues, place, done));
        } catch (error) {
          replace(place, failure(error));
        }
      },
    },
    field({
      name: "rewriteQueues",
      label: "rewrite RocksDB's tables afterwards, even if only little was removed",
      type: "checkbox",
    }),
    h("button", { type: "submit" }, "Dry run"),
  );
  form.addEventListener("input", () => replace(place));
  return panel(
    "What expires next",
    h(
      "p",
      { class: "lead" },
      "Expired files are normally deleted at the hours given by the settings. Here they are deleted at once; the dry run shows which files, and which groups have not read them.",
    ),
    form,
    place,
  );
}

function expiryPreview(view, { segments, unread, unreadComplete }, rewriteQueues, place, done) {
  return [
    h("h3", null, "Dry run: nothing has been deleted yet"),
    table(
      "Files that would be deleted",
      [
        { title: "File", cell: (one) => h("span", { class: "mono" }, one.name) },
        { title: "Size", kind: "number", cell: (one) => bytes(one.size) },
        { title: "Newest message", cell: (one) => time(one.newestAtMs) },
        {
          title: "Reason",
          cell: (one) => (one.cause === "room" ? badge("warn", "room: the disk is nearly full") : one.cause),
        },
      ],
      segments,
      { empty: "No file would be deleted." },
    ),
    segments.length > 0 && [
      h("h3", null, "Groups that have not read all of it"),
      table(
        "Groups that would lose messages",
        [
          { title: "Group", cell: (one) => groupLink(one.group) },
          { title: "Messages", kind: "number", cell: (one) => count(one.messages) },
        ],
        unread,
        { empty: "All groups that were checked have read these messages." },
      ),
      !unreadComplete && h("p", { class: "notice warn" }, "▲ There are more groups and queues than were looked at."),
      workButton(
        `Delete ${counted(segments.length, "file")} now`,
        async () => {
          const gone = await confirm({
            title: "Delete the expired files?",
            label: "Delete files",
            danger: true,
            body: `${counted(segments.length, "file is", "files are")} deleted soon, with all messages in them. This cannot be undone.`,
            act: () => view.call("AdminService/ExpireSegments", { dryRun: false, rewriteQueues }),
          });
          if (!gone) return null;
          replace(
            place,
            h(
              "p",
              { class: "notice info" },
              `● ${counted(gone.segments.length, "file is", "files are")} being deleted; waiting until all are gone …`,
            ),
          );
          replace(
            place,
            await untilGone(
              view,
              gone.segments.map((one) => one.name),
            ),
          );
          done();
          return "done";
        },
        { className: "danger" },
      ),
    ],
  ];
}

// The broker removes files a little later: that they have gone is seen in what is there.
async function untilGone(view, names) {
  for (let look = 0; look < 60; look += 1) {
    const { segments } = await view.call("StorageService/GetStorage");
    const left = segments.filter((one) => names.includes(one.name)).length;
    if (!left) return h("p", { class: "notice good" }, `✓ ${counted(names.length, "file is", "files are")} deleted.`);
    await new Promise((resolve) => {
      setTimeout(resolve, 1000);
    });
  }
  return h("p", { class: "notice warn" }, "▲ The files are still there after a minute; the broker goes on by itself.");
}

// Who is connected.
import { clientsOf, clientsTable } from "./clients_table.js";
import { field, valuesOf } from "./dialog.js";
import { h } from "./dom.js";
import { exportButtons } from "./export.js";
import { counted } from "./format.js";
import { address } from "./links.js";
import { groupField, topicField } from "./names.js";
import { section } from "./view.js";

const REFRESH_MS = 15000;

export async function show(view) {
  view.begin("Clients");
  const asked = {
    topic: view.query("topic"),
    group: view.query("group"),
    type: view.query("type", "CLIENT_TYPE_UNSPECIFIED"),
  };
  const list = section(
    view,
    "Connected",
    async () => {
      const found = await clientsOf(view, asked);
      const { clients } = found;
      return [
        clientsTable(view, found, { empty: "No matching clients." }),
        clients.length > 0 &&
          h(
            "div",
            { class: "pager" },
            h("span", { class: "note" }, counted(clients.length, "client")),
            exportButtons("clients", clients),
          ),
      ];
    },
    { everyMs: REFRESH_MS },
  );
  const form = h(
    "form",
    {
      class: "panel filters",
      onsubmit: (event) => {
        event.preventDefault();
        Object.assign(asked, valuesOf(form));
        history.replaceState(null, "", address(["clients"], asked));
        list.refresh();
      },
    },
    topicField(view, { value: asked.topic, required: false }),
    groupField(view, { value: asked.group, required: false }),
    field({
      name: "type",
      label: "Kind",
      value: asked.type,
      options: [
        ["CLIENT_TYPE_UNSPECIFIED", "all"],
        ["CLIENT_TYPE_PRODUCER", "producers"],
        ["CLIENT_TYPE_CONSUMER", "consumers"],
      ],
    }),
    h("button", { type: "submit" }, "Show"),
  );
  view.add(form, list);
}

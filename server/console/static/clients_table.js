// Clients as rows, and what one of them says of itself.
import { open } from "./dialog.js";
import { h, replace } from "./dom.js";
import { age, unknown } from "./format.js";
import { groupLink, topicLink } from "./links.js";
import { answered, isMany, missingParts, rowsOf } from "./members.js";
import { facts, table } from "./table.js";
import { failure } from "./view.js";

// The clients that members tell of; one that is connected to several members is one row.
export async function clientsOf(view, request) {
  const parts = await view.callMembers("ClientService/ListClients", request);
  const clients = new Map();
  for (const one of rowsOf(answered(parts), (answer) => answer.clients)) {
    const known = clients.get(one.clientId);
    if (known) known.members.push(one.member);
    else clients.set(one.clientId, { ...one, member: undefined, members: [one.member] });
  }
  return { parts, clients: [...clients.values()] };
}

export function clientsTable(view, { parts, clients }, { empty } = {}) {
  return [missingParts(parts), rowsTable(view, parts, clients, empty)];
}

function rowsTable(view, parts, clients, empty) {
  return table(
    "Clients",
    [
      { title: "Client", kind: "wide", cell: (one) => h("span", { class: "mono" }, one.clientId) },
      { title: "Kind", cell: (one) => one.kind || unknown() },
      { title: "Group", cell: (one) => (one.group ? groupLink(one.group) : h("span", { class: "none" }, "none")) },
      {
        title: "Topics",
        kind: "wide",
        cell: (one) =>
          (one.topics ?? []).length
            ? one.topics.map((name, at) => [at > 0 && ", ", topicLink(name)])
            : h("span", { class: "none" }, "none"),
      },
      {
        title: "Language",
        cell: (one) => [one.language || unknown(), " ", one.version || unknown("the client did not report its version")],
      },
      { title: "Host", kind: "wide", cell: (one) => [one.hostname || unknown(), " ", h("small", null, one.address)] },
      isMany(parts) && {
        title: "Members",
        cell: (one) => (one.members.length === parts.length ? "all" : one.members.join(", ")),
      },
      { title: "Settings received", less: true, cell: (one) => age(one.settingsAtMs) },
      {
        title: "Ask the client",
        kind: "act",
        cell: (one) =>
          one.group &&
          h(
            "button",
            {
              type: "button",
              class: "quiet",
              "aria-label": `details of ${one.clientId}`,
              onclick: () => details(view.on(one.members[0]), one),
            },
            "Details",
          ),
      },
    ].filter(Boolean),
    clients,
    { empty },
  );
}

function details(view, client) {
  const about = h("div", { role: "status" }, "Loading …");
  const stack = h("div", { role: "status" });
  const ask = h(
    "button",
    {
      type: "button",
      onclick: async () => {
        ask.disabled = true;
        replace(stack, "Asking the client …");
        try {
          const answer = await view.call("Admin/PrintThreadStackTrace", {
            clientId: client.clientId,
            group: { name: client.group },
          });
          replace(
            stack,
            h("pre", { class: "body", tabindex: "0" }, answer.threadStackTrace || "(the client sent nothing)"),
          );
        } catch (error) {
          replace(stack, failure(error));
        }
        ask.disabled = false;
      },
    },
    "Show threads",
  );
  const element = open(
    client.clientId,
    h("div", { class: "dialog-body" }, about, h("p", null, ask), stack),
    h("button", { type: "button", onclick: () => element.close() }, "Close"),
    { wide: true },
  );
  view
    .call("Admin/GetConsumerRunningInfo", { group: { name: client.group }, clientId: client.clientId })
    .then(({ consumerRunningInfo: info }) => {
      replace(
        about,
        facts(Object.entries(info?.properties ?? {})),
        table(
          "Subscriptions",
          [
            { title: "Topic", cell: ([topic]) => topicLink(topic) },
            {
              title: "Filter",
              kind: "wide",
              cell: ([, filter]) => h("span", { class: "mono" }, `${filter.type ?? ""} ${filter.expression ?? ""}`),
            },
          ],
          Object.entries(info?.subscriptions ?? {}),
          { empty: "The client has no subscriptions." },
        ),
      );
    })
    .catch((error) => replace(about, failure(error)));
}

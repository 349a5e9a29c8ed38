// Users, their secrets (of which none is ever shown but a new one, once), their rules, and what they may do.
import { confirm, field, formDialog, open, valuesOf, wrong } from "./dialog.js";
import { h, replace } from "./dom.js";
import { badge, time } from "./format.js";
import { table } from "./table.js";
import { failure, panel, section } from "./view.js";
import { workButton } from "./work.js";

const ACTIONS = ["pub", "sub", "create", "update", "delete", "get", "list"];
const DECISIONS = [
  ["allow", "allow"],
  ["deny", "deny"],
];
const KINDS = [
  ["normal", "normal"],
  ["super", "super: may do everything"],
];

export async function show(view) {
  const state = {};
  view.begin("Users and rules", {
    actions: [
      h(
        "button",
        { type: "button", class: "primary", onclick: () => createUser(view, () => state.users.refresh()) },
        "Create user",
      ),
      h("button", { type: "button", onclick: () => setRule(view, () => state.rules.refresh()) }, "Set a rule"),
    ],
  });
  state.users = section(view, "Users", async () => {
    const users = (await view.callAll("SecurityService/ListUsers")).flatMap((one) => one.users);
    // A user takes its rules along.
    return usersTable(view, users, () => {
      state.users.refresh();
      state.rules.refresh();
    });
  });
  state.rules = section(view, "Rules", async () => {
    const policies = (await view.callAll("SecurityService/ListPolicies")).flatMap((one) => one.policies);
    return rulesTable(view, policies, () => state.rules.refresh());
  });
  view.add(state.users, state.rules, access(view));
}

function usersTable(view, users, refresh) {
  return table(
    "Users",
    [
      { title: "User", cell: (one) => h("strong", null, one.name) },
      { title: "Kind", cell: (one) => one.kind },
      { title: "State", cell: (one) => (one.enabled ? badge("good", "enabled") : badge("warn", "disabled")) },
      {
        title: "Secrets",
        kind: "wide",
        cell: (one) =>
          one.secrets.length
            ? one.secrets.map((secret) =>
                h(
                  "div",
                  null,
                  `number ${secret.number} ••••••••, since `,
                  time(secret.createdAtMs),
                  " ",
                  workButton("Remove", () => removeSecret(view, one, secret, refresh), { className: "quiet danger" }),
                ),
              )
            : h("span", { class: "none" }, "none"),
      },
      {
        title: "Certificates",
        kind: "wide",
        cell: (one) =>
          one.certificates.length
            ? one.certificates.map((subject) => h("div", { class: "mono" }, subject))
            : h("span", { class: "none" }, "none"),
      },
      { title: "Made", cell: (one) => time(one.createdAtMs) },
      {
        title: "Do",
        kind: "act",
        cell: (one) => [
          workButton("Add secret", () => addSecret(view, one, refresh), { className: "quiet" }),
          workButton(one.enabled ? "Disable" : "Enable", () => enable(view, one, refresh), { className: "quiet" }),
          workButton("Delete", () => removeUser(view, one, refresh), { className: "quiet danger" }),
        ],
      },
    ],
    users,
    { empty: "There are no users." },
  );
}

// A secret is told once, by the call that made it. It is in this dialog alone.
function showSecret(name, secret) {
  return new Promise((resolve) => {
    const element = open(
      `The secret of ${name}`,
      h(
        "div",
        { class: "dialog-body" },
        h("p", { class: "notice warn" }, "▲ It is shown this once, and cannot be shown again."),
        h("p", { class: "secret", tabindex: "0", "aria-label": "the secret" }, secret),
      ),
      h("button", { type: "button", class: "primary", onclick: () => element.close() }, "I have kept it"),
    );
    element.addEventListener("close", resolve);
  });
}

async function createUser(view, refresh) {
  const made = await formDialog({
    title: "Create a user",
    label: "Create",
    fields: [
      { name: "name", label: "Name", required: true, maxlength: "255" },
      { name: "kind", label: "Kind", options: KINDS, value: "normal" },
      {
        name: "secret",
        label: "Secret",
        type: "password",
        autocomplete: "new-password",
        hint: "empty: one is generated, and shown once",
      },
      { name: "withoutSecret", label: "without a secret: a certificate stands for the user", type: "checkbox" },
      {
        name: "certificates",
        label: "Subjects of certificates",
        type: "textarea",
        rows: "2",
        hint: "one per line, such as CN=orders,O=Shop",
      },
    ],
    act: ({ name, kind, secret, withoutSecret, certificates }) =>
      view.call("SecurityService/CreateUser", {
        name: name.trim(),
        kind,
        withoutSecret,
        certificates: lines(certificates),
        ...(secret ? { secret } : {}),
      }),
  });
  if (!made) return;
  refresh();
  if (made.generatedSecret) await showSecret(made.user.name, made.generatedSecret);
}

const lines = (text) =>
  text
    .split("\n")
    .map((one) => one.trim())
    .filter(Boolean);

async function addSecret(view, user, refresh) {
  const made = await formDialog({
    title: `Another secret for ${user.name}`,
    label: "Add",
    lead: "A user may have two secrets: the one in use and its replacement.",
    fields: [
      {
        name: "secret",
        label: "Secret",
        type: "password",
        autocomplete: "new-password",
        hint: "empty: one is generated, and shown once",
      },
    ],
    act: ({ secret }) => view.call("SecurityService/AddSecret", { name: user.name, ...(secret ? { secret } : {}) }),
  });
  if (!made) return null;
  refresh();
  if (made.generatedSecret) await showSecret(user.name, made.generatedSecret);
  return `secret number ${made.secret.number} was added`;
}

async function removeSecret(view, user, secret, refresh) {
  const done = await confirm({
    title: `Remove secret ${secret.number} of ${user.name}?`,
    label: "Remove",
    danger: true,
    body: "Calls signed with this secret are refused from then on.",
    act: () => view.call("SecurityService/RemoveSecret", { name: user.name, number: secret.number }),
  });
  if (done) refresh();
  return done ? "removed" : null;
}

async function enable(view, user, refresh) {
  const act = () => view.call("SecurityService/UpdateUser", { name: user.name, enabled: !user.enabled });
  const done = user.enabled
    ? await confirm({
        title: `Disable ${user.name}?`,
        label: "Disable",
        danger: true,
        body: "All calls of the user are refused until it is enabled again.",
        act,
      })
    : await act();
  if (done) refresh();
  return done ? (user.enabled ? "disabled" : "enabled") : null;
}

async function removeUser(view, user, refresh) {
  const done = await confirm({
    title: `Delete the user ${user.name}?`,
    label: "Delete",
    danger: true,
    mustType: user.name,
    body: "All secrets and rules of the user are deleted, too.",
    act: () => view.call("SecurityService/DeleteUser", { name: user.name }),
  });
  if (done) refresh();
  return done ? "deleted" : null;
}

// --- rules ---

function rulesTable(view, policies, refresh) {
  const rows = policies.flatMap(({ user, rules }) => rules.map((rule) => ({ user, rule })));
  return table(
    "Rules",
    [
      { title: "User", cell: (one) => h("strong", null, one.user) },
      {
        title: "Decision",
        cell: (one) => (one.rule.decision === "allow" ? badge("good", "allow") : badge("bad", "deny")),
      },
      { title: "Resource", kind: "wide", cell: (one) => h("span", { class: "mono" }, one.rule.resource) },
      { title: "Actions", kind: "wide", cell: (one) => one.rule.actions.join(", ") },
      { title: "Calls come from", kind: "wide", cell: (one) => one.rule.sources.join(", ") || "everywhere" },
      {
        title: "Do",
        kind: "act",
        cell: (one) => [
          workButton("Change", async () => ((await setRule(view, refresh, one)) ? "set" : null), {
            className: "quiet",
          }),
          workButton("Remove", () => removeRule(view, one, refresh), { className: "quiet danger" }),
        ],
      },
    ],
    rows,
    { empty: "There are no rules." },
  );
}

async function setRule(view, refresh, before = null) {
  const rule = before?.rule;
  const done = await formDialog({
    title: before ? "Change a rule" : "Set a rule",
    label: "Set",
    lead: "Replaces the user's rule with the same resource and decision.",
    fields: [
      { name: "user", label: "User", required: true, value: before?.user ?? "" },
      { name: "decision", label: "Decision", options: DECISIONS, value: rule?.decision ?? "allow" },
      {
        name: "resource",
        label: "Resource",
        required: true,
        value: rule?.resource ?? "topic:",
        hint: "topic:orders, topic:orders-*, group:*, cluster:*, or * for everything",
      },
      h(
        "fieldset",
        null,
        h("legend", null, "Actions"),
        ACTIONS.map((action) =>
          field({
            name: `may-${action}`,
            label: action,
            type: "checkbox",
            value: rule?.actions.includes(action) ?? false,
          }),
        ),
      ),
      {
        name: "sources",
        label: "Networks or addresses that calls come from",
        type: "textarea",
        rows: "2",
        value: (rule?.sources ?? []).join("\n"),
        hint: "one per line; none: from everywhere",
      },
    ],
    act: (values) => {
      const actions = ACTIONS.filter((action) => values[`may-${action}`]);
      if (!actions.length) throw wrong("Actions: choose at least one");
      return view.call("SecurityService/SetRule", {
        user: values.user.trim(),
        rule: { resource: values.resource.trim(), decision: values.decision, actions, sources: lines(values.sources) },
      });
    },
  });
  if (done) refresh();
  return done;
}

async function removeRule(view, { user, rule }, refresh) {
  const done = await confirm({
    title: `Remove a rule of ${user}?`,
    label: "Remove",
    danger: true,
    body: `${rule.decision} ${rule.actions.join(", ")} on ${rule.resource}`,
    act: () => view.call("SecurityService/RemoveRule", { user, resource: rule.resource, decision: rule.decision }),
  });
  if (done) refresh();
  return done ? "removed" : null;
}

function access(view) {
  const said = h("div", { role: "status" });
  const form = h(
    "form",
    {
      class: "filters",
      onsubmit: async (event) => {
        event.preventDefault();
        replace(said, "Asking …");
        try {
          const answer = await view.call("SecurityService/TestAccess", valuesOf(form));
          replace(
            said,
            h(
              "p",
              null,
              answer.decision === "allow" ? badge("good", "allowed") : badge("bad", "denied"),
              " ",
              answer.reason,
            ),
          );
        } catch (error) {
          replace(said, failure(error));
        }
      },
    },
    field({ name: "user", label: "User", required: true }),
    field({ name: "action", label: "Action", options: ACTIONS.map((one) => [one, one]) }),
    field({ name: "resource", label: "Resource", required: true, placeholder: "topic:orders" }),
    field({ name: "source", label: "Address it comes from", hint: "unknown unless given" }),
    h("button", { type: "submit" }, "Test access"),
  );
  return panel(
    "Test access",
    h("p", { class: "lead" }, "What the broker would say, and why. Nothing is called."),
    form,
    said,
  );
}
